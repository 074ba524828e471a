// What is true now: state, sentence, countdown, the round's bar and its peers.

import { $, cutName, drawing, drawn, h, path, rect, say, text } from './dom.js';
import { about, duration, expected, inAbout, minutesSeconds, shortId } from './figures.js';
import { nodeNow } from './feed.js';
import { peerIcon, peerKind, PEER_WORD, stateIcon } from './glyphs.js';

const PHASES = ['train', 'gather', 'reduce', 'commit', 'apply'];
const WIDE = [.36, .12, .32, .1, .1], NARROW = [.27, .16, .27, .17, .13]; // not to scale: each has its duration
const NO_ROUND = new Set(['starting', 'preflight', 'connecting', 'syncing', 'ejected', 'failed', 'stopped', 'silent']);
const NO_COUNTDOWN = new Set(['paused', 'degraded', 'waiting']);
const capital = word => word.charAt(0).toUpperCase() + word.slice(1);
const secondsTo = at => at ? (Date.parse(at) - nodeNow()) / 1000 : null;

const kindOf = ({ status, staleKind }) =>
  staleKind || (status.reason === 'alone' && status.state === 'training' ? 'alone' : status.state);
const hasRound = view => view.round.number > 0 && view.status.reason !== 'run_finished' && !NO_ROUND.has(kindOf(view));
const wordOf = kind => kind === 'alone' ? 'Training alone' : kind === 'silent' ? 'No answer' : capital(kind);

/** The reason's sentence with its time counted down by this page. */
const sentenceOf = status => {
  const left = secondsTo(status.ends_at);
  if (left === null) return status.sentence;
  return status.live_sentence.replaceAll('{eta}', inAbout(left)).replaceAll('{about}', about(left));
};

let announced = '';
/** Screen readers hear a sentence when state or reason change, not every second. */
const announce = (kind, status) => {
  const key = `${kind}/${status.reason}`;
  if (key !== announced) { announced = key; say($('announcer'), `${wordOf(kind)}. ${sentenceOf(status)}`); }
};

export const showState = view => {
  const kind = kindOf(view);
  const tone = { silent: 'coral', stopped: 'calm' }[kind] ?? view.status.tone;
  $('chip').className = `chip ${tone}`;
  if ($('chip').dataset.kind !== kind) { $('chip').dataset.kind = kind; $('chip-icon').replaceChildren(stateIcon(kind)); }
  say($('chip-word'), wordOf(kind));
  const fix = view.isStale ? view.staleNote : view.status.fix;
  say($('fix'), fix);
  $('fix').hidden = !fix;
  $('round').hidden = !hasRound(view);
  announce(kind, view.status);
  document.title = `${wordOf(kind)} · ${view.run.name || 'no run'} · atoll`;
  tickNow(view);
};

const countdownOf = view => {
  if (view.isStale) return ['–', ' unknown while stale'];
  if (view.status.state === 'paused') return ['', 'paused; the swarm goes on without you'];
  if (view.status.reason === 'alone') return ['', 'commits nothing until peers answer'];
  const left = secondsTo(view.round.ends_at);
  if (left === null) return ['', ''];
  if (left < .5) return ['', 'any moment'];
  const what = NO_COUNTDOWN.has(view.status.state) ? '' : (view.round.phase ?? 'train') === 'train' ? ' until the exchange' : ' until new weights';
  return [minutesSeconds(left), what];
};

let redrawBar = () => {};
/** Once a second: sentence, countdown, the bar's edge. */
export const tickNow = view => {
  say($('sentence'), view.isStale ? view.staleSentence || view.status.timeless_sentence : sentenceOf(view.status));
  const [figure, words] = countdownOf(view);
  const shown = figure + words;
  if ($('count').textContent !== shown) $('count').replaceChildren(figure, ...(words ? [h('small', {}, words)] : []));
  redrawBar();
};

/** Share of a phase that is over, 0 to 1, from what was measured, else from the time that it usually takes. */
const progressOf = (phase, isNow, isFrozen) => {
  if (!phase) return 0;
  if (phase.seconds !== null) return 1;
  if (!isNow) return 0;
  if (phase.progress !== null) return phase.progress;
  if (isFrozen || !phase.started_at || !phase.expected_s) return 0;
  return Math.min(.97, Math.max(0, -secondsTo(phase.started_at)) / phase.expected_s);
};

const captionOf = (phase, isNow, isFrozen, isNarrow) => {
  if (!phase) return '';
  if (phase.seconds !== null) return isNarrow && phase.seconds > 60 ? minutesSeconds(phase.seconds) : duration(phase.seconds);
  const usual = phase.expected_s;
  if (isNow && phase.started_at && !isFrozen) {
    const elapsed = minutesSeconds(Math.max(0, -secondsTo(phase.started_at)));
    return usual === null || usual < 1 || isNarrow ? elapsed : `${elapsed} of ${minutesSeconds(usual)}`;
  }
  return usual === null ? '' : isNarrow || usual < 0.05 ? expected(usual) : `about ${expected(usual)}`;
};

const drawBar = (view, width) => {
  const isNarrow = width < 520, shares = isNarrow ? NARROW : WIDE, gap = 3, parts = [];
  let x = 0;
  PHASES.forEach((name, index) => {
    const phase = view.round.phases.find(each => each.name === name), isNow = view.round.phase === name;
    const partWidth = width * shares[index] - gap, done = partWidth * progressOf(phase, isNow, view.isStale);
    parts.push(rect(x, 3, partWidth, 14, 'fill-well', 3), rect(x, 3, done, 14, index === 0 ? 'fill-lagoon' : 'fill-sea', 3));
    if (isNow) parts.push(path(`M${x + done} 0V20`, 'line-ink', 2.5));
    parts.push(text(x, 34, capital(name), isNow ? 'ink strong' : phase?.seconds != null ? '' : 'dim'));
    parts.push(text(x, 48, captionOf(phase, isNow, view.isStale, isNarrow), 'dim fine'));
    x += partWidth + gap;
  });
  return drawing(width, 50, `Round ${view.round.number}, now in ${view.round.phase ?? 'no phase'}`, ...parts);
};

const groupOf = group => {
  if (!group?.role) return '';
  return group.role === 'delegate' ? `, delegate of a group of ${group.num_peers}` : `, in the group of ${group.delegate_name}`;
};

export const showRound = view => {
  say($('round-name'), `Round ${view.round.number}${view.round.is_provisional ? ', provisional' : ''}${groupOf(view.group)}`);
  $('round').hidden = !hasRound(view);
  tickNow(view);
};

const EXCEPTIONS = ['late', 'rejected', 'absent'];
const dotOf = peer => h('li', { class: `${peer.is_self ? 'you' : ''} ${EXCEPTIONS.includes(peer.state) ? 'exception' : ''}` },
  peerIcon(peerKind(peer)),
  h('span', { title: peer.name },
    cutName(peer.name || shortId(peer.peer_id)), peer.is_self ? ' (you)' : '', peer.is_leader ? h('i', {}, ' leader') : null,
    EXCEPTIONS.includes(peer.state) ? h('i', {}, ` ${PEER_WORD[peer.state]}${peer.note ? `, ${peer.note}` : ''}`) : null,
    EXCEPTIONS.includes(peer.state) ? null : h('span', { class: 'only-heard' }, `, ${PEER_WORD[peer.state]}`)));

const MAX_DOTS = 24;
/** You first, then the others, exceptions together at the end. */
export const sortedPeers = peers => [...peers].sort((a, b) =>
  (EXCEPTIONS.indexOf(a.state) - EXCEPTIONS.indexOf(b.state)) || (b.is_self - a.is_self) || (b.is_leader - a.is_leader));

export const showDots = view => {
  const peers = sortedPeers(view.peers);
  const shown = peers.length <= MAX_DOTS ? peers
    : peers.filter((peer, index) => index < MAX_DOTS || peer.is_self || peer.is_leader || EXCEPTIONS.includes(peer.state));
  const rest = peers.length - shown.length;
  $('dots').replaceChildren(...shown.map(dotOf), ...(rest ? [h('li', {}, `${rest} more`)] : []));
};

export const startNow = view => { redrawBar = drawn($('round-bar'), width => drawBar(view, width)); };
