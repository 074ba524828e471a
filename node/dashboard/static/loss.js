// The loss panel: this node's training loss, the validation loss of the swarm's weights, by round, time or tokens.

import { $, drawn, empty, h, say } from './dom.js';
import { clock, count, loss } from './figures.js';
import { lineChart } from './chart.js';

const KINDS = [
  { kind: 'local', name: 'local', line: 'line-lagoon', label: 'lagoon', width: 1, opacity: .75 },
  { kind: 'swarm', name: 'swarm', line: 'line-ink', label: 'ink strong', width: 2.2, opacity: 1 },
  { kind: 'validation', name: 'validation', line: 'line-ink', label: 'ink strong', width: 2.2, opacity: 1, marks: true },
];
const AXES = {
  round: { of: point => point.round, format: x => String(Math.round(x * 100) / 100), reading: x => `round ${x.toFixed(1)}` },
  time: { of: point => Date.parse(point.at), format: (x, step) => clock(new Date(x)).slice(0, step < 60000 ? 8 : 5), reading: x => clock(new Date(x)) },
  tokens: { of: point => point.tokens, format: x => count(x), reading: x => `${count(x)} tokens` },
};

let axis = 'round';
let redraw = () => {};

const seriesOf = points => KINDS.map(({ kind, ...look }) => ({
  ...look,
  points: points.filter(point => point.kind === kind && AXES[axis].of(point) !== null)
    .map(point => ({ x: AXES[axis].of(point), y: point.value })).sort((a, b) => a.x - b.x),
}));

const draw = (view, width) => {
  const series = seriesOf(view.loss);
  if (!series.some(each => each.points.length)) return empty('No loss yet. The first point appears after the first inner steps.');
  const { format, reading } = AXES[axis];
  const label = `Loss by ${axis}, nats per byte. ${$('loss-sum').textContent}`;
  return lineChart(width, { series, formatX: format, reading, label });
};

const lastOf = (points, kind) => points.findLast(point => point.kind === kind);

export const showLoss = view => {
  $('loss-axis').querySelector('[data-axis="tokens"]').hidden = !view.loss.some(point => point.tokens !== null);
  const local = lastOf(view.loss, 'local'), validation = lastOf(view.loss, 'validation');
  $('loss-sum').replaceChildren(...(validation ? ['validation ', h('b', {}, loss(validation.value)), ` after round ${validation.round}`] : []),
    ...(local ? [`${validation ? ' · ' : ''}local ${loss(local.value)}`] : []), local ? ' nats per byte' : '');
  const numLost = view.loss.filter(point => point.value === null).length;
  $('loss-warning').hidden = !numLost;
  say($('loss-warning'), `${numLost} ${numLost === 1 ? 'value was' : 'values were'} not finite, marked × below the curve.`);
  redraw();
};

export const startLoss = view => {
  redraw = drawn($('loss-chart'), width => draw(view, width));
  for (const button of $('loss-axis').querySelectorAll('button')) {
    button.addEventListener('click', () => {
      axis = button.dataset.axis;
      for (const each of $('loss-axis').querySelectorAll('button')) each.setAttribute('aria-pressed', String(each === button));
      redraw();
    });
  }
};
