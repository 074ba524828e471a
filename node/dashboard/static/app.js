// Follows the node and shows what it says. `view` is the snapshot as last heard, plus what only this page knows.

import { $, say } from './dom.js';
import { clock, expected } from './figures.js';
import { follow, post, token } from './feed.js';
import { showDots, showRound, showState, startNow, tickNow } from './now.js';
import { showLoss, startLoss } from './loss.js';
import * as panels from './panels.js';

const STALE_AFTER_MS = 5000;
const SILENT_AFTER_MS = 60000;
const MAX_LOSS_POINTS = 2000, MAX_LOG_LINES = 500;

const UNKNOWN_STATUS = { state: 'connecting', reason: null, sentence: 'Asking the node what it does.', live_sentence: '', fix: '', tone: 'calm', ends_at: null };
const view = { run: { name: '' }, node: {}, status: UNKNOWN_STATUS, round: { number: 0, phases: [] }, peers: [], loss: [], log: [], alerts: [], isStale: false, staleKind: '', staleSentence: '', staleNote: '' };
// staleKind: '' while only the stream is broken, 'silent' without an answer, 'stopped' after a goodbye

// field of the snapshot -> what to draw again
const SHOW = {
  run: [panels.showIdentity, panels.showSpec, showState],
  node: [panels.showIdentity, panels.showTraining],
  status: [showState],
  round: [showRound, panels.showPeers],
  peers: [showDots, panels.showPeers],
  contribution: [panels.showContribution],
  training: [panels.showTraining],
  exchange: [panels.showExchange],
  agreement: [panels.showCheckpoints],
  checkpoint: [panels.showCheckpoints],
  network: [panels.showCheckpoints],
  alerts: [panels.showAlerts],
  loss: [showLoss],
  log: [panels.showLog],
};

const show = fields => {
  for (const draw of new Set(fields.flatMap(field => SHOW[field] ?? []))) draw(view);
};

let lastHeardAt = null; // performance.now() of the last event
let heardDate = null;
let hasSnapshot = false;
let problem = null;
let hasStopped = false;

const bannerWords = silentMs => {
  if (problem) return `${problem.reason} ${problem.fix}`;
  if (hasStopped) return `The node stopped at ${clock(heardDate)}. Nothing below is live.${view.status.reason === 'run_finished' ? '' : ' To start it again: atoll join.'}`;
  if (!heardDate) return 'No answer from the node. To see why: atoll status.';
  const since = expected(Math.floor(silentMs / 1000));
  if (silentMs >= SILENT_AFTER_MS) return `No answer for ${since}. Everything below is from ${clock(heardDate)} and older. To see why: atoll status.`;
  return `Stale for ${since}. The stream broke at ${clock(heardDate)}; reconnecting. Nothing below is live.`;
};

const staleWords = kind => {
  if (kind === 'stopped') return ['stopped', 'failed'].includes(view.status.state) ? view.status.sentence : 'This node is stopped.';
  if (kind !== 'silent') return '';
  if (problem) return problem.reason;
  const since = heardDate ? `stopped answering at ${clock(heardDate)}` : 'does not answer';
  return `The node ${since}; this page tries again every 5 s.`;
};

/** Once a second, and at every event: is what is shown still true? */
const judge = () => {
  const silentMs = performance.now() - (lastHeardAt ?? 0);
  const isStale = problem !== null || hasStopped || silentMs > STALE_AFTER_MS;
  const isSilent = isStale && !hasStopped && (problem !== null || !heardDate || silentMs >= SILENT_AFTER_MS);
  document.documentElement.classList.toggle('stale', isStale);
  $('banner').hidden = !isStale;
  $('banner').classList.toggle('bad', isSilent);
  if (isStale) say($('banner-text'), bannerWords(silentMs));
  say($('live-word'), !isStale ? (hasSnapshot ? 'live' : 'connecting') : hasStopped ? 'stopped' : problem ? 'refused' : `stale for ${expected(Math.floor(silentMs / 1000))}`);
  const staleKind = hasStopped ? 'stopped' : isSilent ? 'silent' : '';
  if (isStale === view.isStale && staleKind === view.staleKind && !problem) return;
  const staleNote = staleKind || !heardDate ? '' : `As of ${clock(heardDate)}.`;
  Object.assign(view, { isStale, staleKind, staleNote, staleSentence: staleWords(staleKind) });
  showState(view);
};

/** As the node does: a curve that is too long keeps every second point, so that its beginning stays. */
const thinned = points => {
  for (const kind of new Set(points.map(point => point.kind))) {
    const ofKind = points.filter(point => point.kind === kind);
    if (ofKind.length <= MAX_LOSS_POINTS) continue;
    const kept = new Set(ofKind.filter((point, index) => index % 2 === 0 || point.value === null || point === ofKind.at(-1)));
    points = points.filter(point => point.kind !== kind || kept.has(point));
  }
  return points;
};

const append = (list, more, maximum) => [...list, ...more].slice(-maximum);

follow({
  snapshot(data) {
    hasSnapshot = true;
    Object.assign(view, data);
    show(Object.keys(SHOW));
  },
  change(data) {
    const { loss = [], log = [], ...fields } = data;
    Object.assign(view, fields);
    view.loss = thinned([...view.loss, ...loss]);
    for (const line of log) {
      if (line.num_repeats > 1) view.log = view.log.slice(0, -1); // the same line again: only its count grows
      view.log = append(view.log, [line], MAX_LOG_LINES);
    }
    show(Object.keys(data));
  },
  alive() {
    [lastHeardAt, heardDate, problem, hasStopped] = [performance.now(), new Date(), null, false];
    judge();
  },
  bye() { hasStopped = true; heardDate = new Date(); judge(); },
  broken() { judge(); },
  refused(found) { problem = found; judge(); },
});

setInterval(() => {
  judge();
  if (!view.isStale && hasSnapshot) { tickNow(view); panels.tickPeers(); }
}, 1000);

startNow(view);
startLoss(view);
panels.startPanels(view);
show(['loss', 'peers', 'alerts', 'log']);

// --- theme: the system decides until the button is used; the choice stays in this browser ---------------------------

const root = document.documentElement;
const isDark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const savedTheme = localStorage.getItem('atoll-theme');
if (savedTheme === 'dark' || savedTheme === 'light') root.dataset.theme = savedTheme;
$('theme').addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  localStorage.setItem('atoll-theme', root.dataset.theme);
});

// --- stop: only with the token, and only at the second click ----------------------------------------------------------

const CONFIRM_MS = 5000;
let isAsking = false;
const rest = () => { isAsking = false; say($('stop'), 'Stop'); };
$('stop').hidden = !token;
$('stop').addEventListener('click', async () => {
  if (!isAsking) {
    isAsking = true;
    say($('stop'), 'Save and stop now?');
    setTimeout(rest, CONFIRM_MS);
    return;
  }
  rest();
  const refusal = await post('stop').catch(() => ({ reason: 'The node does not answer.', fix: '' }));
  if (refusal) say($('announcer'), `${refusal.reason} ${refusal.fix}`);
});
