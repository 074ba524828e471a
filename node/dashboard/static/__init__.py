"""The page: HTML, CSS and ES modules, served from memory under their exact names. A package, so that wheels carry it."""
