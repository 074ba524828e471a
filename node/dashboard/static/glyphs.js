// One shape per state, so that colour is never the only sign.

import { path, rect, s } from './dom.js';

const ring = (classes, more = {}) => s('circle', { r: 6.2, class: `fill-none ${classes}`, 'stroke-width': 1.6, ...more });
const tick = () => path('M-3.2 .2 -.9 2.6 3.4 -2.3', 'fill-none line-on', 1.8);
const halfFilled = tone => [ring(`line-${tone}`), path('M0 -6.2A6.2 6.2 0 0 1 0 6.2z', `fill-${tone}`, 0)];

const PEER = {
  you: () => [s('circle', { r: 7, class: 'fill-lagoon' }), tick()],
  done: () => [s('circle', { r: 7, class: 'fill-isle' }), tick()],
  training: () => halfFilled('sea'),
  working: () => halfFilled('lagoon'),
  ready: (tone = 'sea') => [ring(`line-${tone}`), s('circle', { r: 3, class: `fill-${tone}` })],
  exchanging: (tone = 'sea') => [ring(`line-${tone}`), path('M-3 -1.5H3L1.2 -3.2M3 1.5H-3L-1.2 3.2', `fill-none line-${tone}`, 1.4)],
  'own-ready': () => PEER.ready('lagoon'),
  'own-exchanging': () => PEER.exchanging('lagoon'),
  joining: () => [ring('line-lagoon'), path('M0 -3V3M-3 0H3', 'fill-none line-lagoon', 1.8)],
  paused: () => [ring('line-ink-3'), path('M-2 -2.8V2.8M2 -2.8V2.8', 'fill-none line-ink-3', 1.8)],
  late: () => [path('M0 -8.4 8.4 0 0 8.4 -8.4 0z', 'fill-sand', 0), path('M0 -3.6V.6H3', 'fill-none line-on', 1.8)],
  rejected: () => [rect(-6.8, -6.8, 13.6, 13.6, 'fill-coral', 2), path('M-3 -3 3 3M3 -3 -3 3', 'fill-none line-on', 1.8)],
  absent: () => [ring('line-ink-3', { 'stroke-dasharray': '2.6 2.6' })],
};

export const PEER_WORD = {
  done: 'in the mean', training: 'training', ready: 'ready', exchanging: 'exchanging', joining: 'joining',
  paused: 'paused', late: 'late', rejected: 'rejected', absent: 'not seen',
};

/** A peer's sign, 16 px unless told otherwise. */
export const peerIcon = (kind, size = 16) =>
  s('svg', { width: size, height: size, viewBox: '-9 -9 18 18', 'aria-hidden': 'true' }, ...(PEER[kind] ?? PEER.absent)());

/** Which sign a peer gets; this node's own is teal. */
export const peerKind = peer => {
  if (!peer.is_self) return peer.state;
  return { done: 'you', training: 'working', ready: 'own-ready', exchanging: 'own-exchanging' }[peer.state] ?? peer.state;
};

const CLOCK = 'M12 6V12L16 14M12 3A9 9 0 1 0 12 21 9 9 0 1 0 12 3';
const CROSS = 'M6 6 18 18M18 6 6 18';
const ARROWS = 'M4 9H18L14 5M20 15H6L10 19';
const STATE = {
  starting: CLOCK, preflight: CLOCK, connecting: CLOCK, waiting: CLOCK,
  syncing: 'M12 4V15M7 11 12 16 17 11M4 20H20',
  training: 'M3 13C6 7 9 7 12 13S18 19 21 13',
  exchanging: ARROWS, applying: ARROWS,
  paused: 'M8 5V19M16 5V19',
  finishing: 'M12 3A9 9 0 1 0 12 21 9 9 0 1 0 12 3M9 9H15V15H9z',
  degraded: 'M12 4 21 19H3zM12 10V14M12 16.5V16.6',
  alone: 'M6 15C6 11 9 9 12 9S18 11 18 15zM3 19H21',
  ejected: CROSS, failed: CROSS, silent: CROSS,
  stopped: 'M6 6H18V18H6z',
};

/** The state chip's sign, 24 px. */
export const stateIcon = kind => s('svg', { width: 24, height: 24, 'aria-hidden': 'true' },
  path(STATE[kind] ?? CLOCK, 'fill-none', 2.2, { stroke: 'currentColor', 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }));

export const severityIcon = severity => peerIcon(severity === 'error' ? 'rejected' : severity === 'warning' ? 'late' : 'done', 14);
