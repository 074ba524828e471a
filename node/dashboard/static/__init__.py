"""The page: HTML, CSS and ES modules, served from memory by name. A package, so that wheels carry it."""
