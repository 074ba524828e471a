// Building the page from values. Whatever comes from outside enters as a text node or an attribute, never as markup.

const SVG = 'http://www.w3.org/2000/svg';
const MAX_NAME_CHARS = 24;

export const $ = id => document.getElementById(id);

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
};

/** An HTML element: h('td', { class: 'num' }, 'text', child). */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const text = (x, y, words, classes = '', anchor = 'start') =>
  s('text', { x, y, class: classes, 'text-anchor': anchor }, String(words));

export const rect = (x, y, width, height, classes, radius = 0) =>
  s('rect', { x, y, width: Math.max(0, width), height: Math.max(0, height), class: classes, rx: radius });

export const path = (d, classes, width = 1.5, more = {}) => s('path', { d, class: classes, 'stroke-width': width, ...more });

/** A drawing in real pixels with a description for those who hear it. */
export const drawing = (width, height, label, ...children) =>
  s('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label }, ...children);

/** Set a text only if it differs, so that screen readers and selections are left alone. */
export const say = (element, words) => {
  if (element.textContent !== words) element.textContent = words;
};

/** Redraw `draw(width)` in `host` when it is called and when the width changes; returns the redraw function. */
export const drawn = (host, draw) => {
  let width = 0;
  const redraw = () => {
    width = Math.floor(host.clientWidth);
    if (width > 0) host.replaceChildren(draw(width));
  };
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (Math.floor(host.clientWidth) !== width) redraw();
  })).observe(host);
  return redraw;
};

/** A stranger's name, cut at 24 characters. */
export const cutName = name => {
  const characters = [...name];
  return characters.length > MAX_NAME_CHARS ? characters.slice(0, MAX_NAME_CHARS - 1).join('') + '…' : name;
};

/** A hash or id that is copied on click. */
export const copyable = (shown, whole) => {
  const button = h('button', { class: 'copy', type: 'button', title: whole, 'aria-label': `Copy ${whole}` }, shown);
  button.addEventListener('click', () => navigator.clipboard?.writeText(whole).catch(() => {}));
  return button;
};

/** Children of a <dl>: [title, value] pairs; a value is text or a node. */
export const pairs = rows => rows.flatMap(([title, value]) => [h('dt', {}, title), h('dd', {}, value)]);

export const empty = words => h('p', { class: 'empty' }, words);
