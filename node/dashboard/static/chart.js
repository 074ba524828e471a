// A line chart in real pixels: hairlines, labels at the lines' ends, a reading under the pointer or the arrow keys.
//
// The only module that draws curves; a chart library would take the place of `lineChart` and nothing else.

import { drawing, path, rect, s, text } from './dom.js';

const HEIGHT = 250, NARROW_HEIGHT = 200;
const BEGINNING = .05;
const MAX_MARKS = 20; // of a run; of more points every second, third, … is marked, the last one always

/** Round tick positions that cover [low, high] with about `wanted` steps. */
export const ticks = (low, high, wanted) => {
  const raw = (high - low) / Math.max(1, wanted) || 1, magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * magnitude).find(size => size >= raw * .999) ?? raw;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
};

const range = values => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Runs of finite points: a line breaks where a value is missing, and a single point between two gaps is a run too. */
const runsOf = points => {
  const runs = [[]];
  for (const point of points) {
    if (point.y === null) runs.push([]);
    else runs.at(-1).push(point);
  }
  return runs.filter(run => run.length);
};

/** What only the first twentieth of the curve reaches may leave the chart at its top: the rest is what there is to see. */
const topOf = (all, x0, x1) => {
  const later = all.filter(point => point.y !== null && point.x >= x0 + (x1 - x0) * BEGINNING);
  return later.length ? range(later.map(point => point.y))[1] : Infinity;
};

const lineOf = (run, X, Y) => run.map((point, index) => `${index ? 'L' : 'M'}${X(point.x).toFixed(1)} ${Y(point.y).toFixed(1)}`).join('');

const drawSeries = (series, X, Y, floor) => {
  const parts = [];
  for (const run of runsOf(series.points)) {
    if (run.length === 1 && !series.marks) parts.push(s('circle', { cx: X(run[0].x), cy: Y(run[0].y), r: 2.5, class: `fill-none ${series.line}`, 'stroke-width': 2 }));
    else if (run.length > 1) parts.push(path(lineOf(run, X, Y), `fill-none ${series.line}`, series.width, { 'stroke-linejoin': 'round', 'stroke-opacity': series.opacity }));
    const every = Math.ceil(run.length / MAX_MARKS), isMarked = index => (run.length - 1 - index) % every === 0;
    if (series.marks) parts.push(...run.filter((_, index) => isMarked(index)).map(point => path(`M${X(point.x)} ${Y(point.y) - 4}l4 4-4 4-4-4z`, 'fill-bg line-sea', 1.6)));
  }
  const lost = series.points.filter(point => point.y === null);
  parts.push(...lost.map(point => path(`M${X(point.x) - 3} ${floor - 3}l6 6m0-6l-6 6`, 'fill-none line-coral', 1.6, { 'data-lost': 'true' })));
  return parts;
};

/** Labels at the right ends, pushed apart so that they stay readable. */
const endLabels = (shown, X, Y, x, top, floor) => {
  const labels = shown.map(series => ({ series, y: Y(series.points.findLast(point => point.y !== null).y) + 4 })).sort((a, b) => a.y - b.y);
  labels.forEach((label, index) => { if (index) label.y = Math.max(label.y, labels[index - 1].y + 16); });
  const excess = Math.max(0, (labels.at(-1)?.y ?? 0) - floor);
  return labels.map(({ series, y }) => text(x, Math.max(top + 8, y - excess), series.name, series.label));
};

/**
 * `series`: [{ name, points: [{ x, y }], line, label, width, opacity, marks }], y null where a value was not finite.
 * `formatX(x, step)` writes the horizontal axis, `reading(x)` the words for a place on the axis. Returns an element.
 */
export const lineChart = (width, { series, formatX, reading, label }) => {
  const shown = series.filter(each => each.points.some(point => point.y !== null));
  const all = series.flatMap(each => each.points), isNarrow = width < 500, height = isNarrow ? NARROW_HEIGHT : HEIGHT;
  const margin = { left: 34, right: 76, top: 10, bottom: 22 }, floor = height - margin.bottom;
  let [x0, x1] = range(all.map(point => point.x));
  if (x0 === x1) { x0 -= .5; x1 += .5; }
  const values = all.filter(point => point.y !== null).map(point => point.y);
  let [low, high] = values.length ? range(values) : [0, 1];
  high = Math.min(high, topOf(all, x0, x1));
  const slack = (high - low) * .06 || .05;
  [low, high] = [low - slack, high + slack];
  const X = x => margin.left + (x - x0) / (x1 - x0) * (width - margin.left - margin.right);
  const Y = y => floor - (y - low) / (high - low) * (floor - margin.top);
  const rows = ticks(low, high, 6), columns = ticks(x0, x1, isNarrow ? 3 : 6), stepOf = found => found[1] - found[0] || 1;
  const grid = rows.flatMap(y => [path(`M${margin.left} ${Y(y)}H${width - margin.right}`, 'line-rule', 1),
    text(margin.left - 8, Y(y) + 4, y.toFixed(Math.max(1, Math.ceil(-Math.log10(stepOf(rows))))), 'dim fine', 'end')]);
  const axis = columns.map(x => text(X(x), height - 4, formatX(x, stepOf(columns)), 'dim fine', 'middle'));
  const cursor = s('g', {});
  const plot = s('clipPath', { id: 'plot' }, rect(0, margin.top, width, floor - margin.top));
  const curves = s('g', { 'clip-path': 'url(#plot)' }, ...series.flatMap(each => drawSeries(each, X, Y, floor)));
  const svg = drawing(width, height, label, plot, ...grid, ...axis, curves,
    ...endLabels(shown, X, Y, width - margin.right + 8, margin.top, floor), cursor);
  addReading(svg, cursor, { shown, X, Y, x0, x1, width, margin, floor, reading });
  return svg;
};

const nearest = (points, x) => points.reduce((best, point) => best === null || Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best, null);

const addReading = (svg, cursor, { shown, X, x0, x1, Y, width, margin, floor, reading }) => {
  let at = null;
  const show = x => {
    at = Math.min(x1, Math.max(x0, x));
    const found = shown.map(series => ({ series, point: nearest(series.points.filter(point => point.y !== null), at) }));
    const words = [reading(at), ...found.map(({ series, point }) => `${series.name} ${point.y.toFixed(3)}`)].join(' · ');
    const isRight = X(at) > width / 2;
    cursor.replaceChildren(path(`M${X(at)} ${margin.top}V${floor}`, 'line-edge', 1),
      ...found.filter(({ point }) => Y(point.y) >= margin.top).map(({ point }) => s('circle', { cx: X(point.x), cy: Y(point.y), r: 3.5, class: 'fill-ink' })),
      text(X(at) + (isRight ? -8 : 8), margin.top + 10, words, 'ink halo', isRight ? 'end' : 'start'));
  };
  const hide = () => { at = null; cursor.replaceChildren(); };
  svg.setAttribute('tabindex', '0');
  svg.addEventListener('pointermove', event => show(x0 + (event.offsetX - margin.left) / (width - margin.left - margin.right) * (x1 - x0)));
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { show((at ?? x1) + step * (x1 - x0) / 40); event.preventDefault(); }
  });
};
