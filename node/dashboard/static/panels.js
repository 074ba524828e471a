// The panels below the box. Each function shows one part of the snapshot and touches nothing else.

import { $, copyable, cutName, drawing, drawn, empty, h, pairs, rect, say, text } from './dom.js';
import * as f from './figures.js';
import { nodeNow } from './feed.js';
import { peerIcon, peerKind, PEER_WORD, severityIcon } from './glyphs.js';
import { sortedPeers } from './now.js';

const figure = (title, value, unit, second) => h('div', {}, h('dt', {}, title),
  h('dd', { class: 'n' }, value, ...(unit ? [' ', h('small', {}, unit)] : [])), h('dd', { class: 's' }, second ?? ''));

const age = at => at ? Math.max(0, (nodeNow() - Date.parse(at)) / 1000) : null;

export const showContribution = view => {
  const given = view.contribution, known = given.num_counted + given.num_skipped + given.num_rejected;
  const share = given.last_share;
  say($('contribution-sum'), known ? `${f.integer(known)} round${known === 1 ? '' : 's'} since you joined${given.joined_round ? ` at round ${given.joined_round}` : ''}` : 'nothing counted yet');
  $('contribution-figures').replaceChildren(
    figure('Rounds counted', f.integer(given.num_counted), '', known ? `${f.percent(given.num_counted / known)} of the rounds since you joined` : ''),
    figure('Skipped', f.integer(given.num_skipped), '', given.num_skipped ? 'work of a skipped round counts in the next' : ''),
    figure('Rejected', f.integer(given.num_rejected), '', given.last_rejection ?? ''),
    figure('Tokens', ...f.countParts(given.tokens), `${f.count(given.tokens_this_round)} in this round`),
    figure('Share of the last mean', share === null ? f.UNKNOWN : (100 * share).toFixed(1), share === null ? '' : '%', ''),
    ...(given.last_receipt_round === null ? [] : [figure('Last receipt', String(given.last_receipt_round), '', 'round that has your update')]),
  );
};

export const showTraining = view => {
  const now = view.training, [speed, unit] = f.countParts(now.tokens_per_s);
  say($('training-sum'), view.node.device ? `on ${view.node.device === 'cpu' ? 'the CPU' : view.node.device}` : '');
  $('training-figures').replaceChildren(
    figure('Speed', speed, `${unit ? `${unit} ` : ''}tokens/s`, ''),
    figure('Inner step', f.integer(now.step), now.num_steps === null ? '' : `of ${f.integer(now.num_steps)}`, 'in this round'),
    figure('Local loss', f.loss(now.loss), '', 'nats per byte, last step'),
    figure('Gradient norm', now.gradient_norm === null ? f.UNKNOWN : now.gradient_norm.toPrecision(3), '', 'before clipping'),
  );
};

const COLUMNS = [['Name', ''], ['State', ''], ['Rounds', 'num'], ['Share', 'num'], ['Speed, tokens/s', 'num'], ['Version', 'gap'], ['Round trip', 'num'], ['Last seen', 'num']];
const CLOCK_APART_MS = 2000; // what a clock without network time gains in days: worth a word

const roundTripTitle = peer => peer.is_self || peer.clock_offset_ms === null ? null
  : `There and back to this peer; its clock is ${f.clockOffset(peer.clock_offset_ms)}`;
const clockTag = peer => Math.abs(peer.clock_offset_ms ?? 0) < CLOCK_APART_MS ? null
  : h('span', { class: 'tag', title: 'Its clock, compared with this node’s' }, `clock ${f.clockOffset(peer.clock_offset_ms)}`);

const PATH_TITLE = {
  libp2p: 'Bulk data go over libp2p: no direct connection came about',
  relayed: 'No bulk data: messages go through a relay',
};

const peerRow = peer => h('tr', { class: peer.is_self ? 'you' : null },
  h('td', { title: peer.name }, cutName(peer.name || 'no name'), peer.is_self ? ' (you)' : '',
    h('span', { class: 'id', title: peer.peer_id }, f.shortId(peer.peer_id)), peer.is_leader ? h('span', { class: 'tag' }, 'leader') : null,
    peer.role ? h('span', { class: 'tag' }, peer.role) : null,
    PATH_TITLE[peer.reach] ? h('span', { class: 'tag', title: PATH_TITLE[peer.reach] }, peer.reach) : null, clockTag(peer)),
  h('td', {}, h('span', { class: 'state', title: peer.note || null }, peerIcon(peerKind(peer), 14), PEER_WORD[peer.state])),
  h('td', { class: 'num left', 'data-unit': 'rounds' }, f.integer(peer.num_rounds)),
  h('td', { class: 'num optional' }, f.percent(peer.share)),
  h('td', { class: 'num', 'data-unit': 'tokens/s' }, f.count(peer.tokens_per_s)),
  h('td', { class: 'optional gap' }, peer.version || f.UNKNOWN),
  h('td', { class: 'num optional', title: roundTripTitle(peer) }, f.milliseconds(peer.round_trip_ms)),
  h('td', { class: 'num optional', 'data-seen': peer.is_self ? null : peer.last_seen_at }, peer.is_self ? f.UNKNOWN : f.duration(age(peer.last_seen_at))));

export const showPeers = view => {
  const others = view.peers.filter(peer => !peer.is_self).length, quorum = view.round.quorum;
  say($('peers-sum'), view.peers.length ? `${others} other${others === 1 ? '' : 's'}${quorum ? `; ${quorum} signatures commit a round` : ''}` : '');
  if (!view.peers.length) return $('peer-table').replaceChildren(empty('No peer is known yet. The first appears when a seed answers.'));
  return $('peer-table').replaceChildren(h('table', {}, h('caption', { class: 'only-heard' }, 'Peers of this run'),
    h('thead', {}, h('tr', {}, ...COLUMNS.map(([title, classes]) => h('th', { class: classes, scope: 'col' }, title)))),
    h('tbody', {}, ...sortedPeers(view.peers).map(peerRow))));
};

/** Once a second: how long ago each peer was heard of. */
export const tickPeers = () => {
  for (const cell of $('peer-table').querySelectorAll('[data-seen]')) {
    say(cell, f.duration(age(cell.dataset.seen)));
  }
};

let redrawBars = () => {};
const drawBars = (view, width) => {
  const { sent_bytes: sent = null, bytes_at_32_bits: full = null } = view.exchange ?? {};
  if (sent === null || full === null) return empty('Nothing was exchanged yet. The figures appear after the first exchange.');
  const factor = sent > 0 ? `, ${(full / sent).toFixed(2)} × less` : '', top = Math.max(full, sent, 1);
  return drawing(width, 76, `Sent ${f.bytes(sent)}, at 32 bits it would be ${f.bytes(full)}`,
    text(0, 12, 'at 32 bits'), text(width, 12, f.bytes(full), 'ink', 'end'), rect(0, 19, width, 10, 'fill-well', 3), rect(0, 19, width * full / top, 10, 'fill-edge', 3),
    text(0, 52, 'sent, all messages', 'ink strong'), text(width, 52, `${f.bytes(sent)}${factor}`, 'ink strong', 'end'),
    rect(0, 59, width, 10, 'fill-well', 3), rect(0, 59, width * sent / top, 10, 'fill-sea', 3));
};

export const showExchange = view => {
  const last = view.exchange;
  say($('exchange-sum'), last.round === null ? '' : `round ${last.round}`);
  redrawBars();
  $('exchange-pairs').hidden = last.sent_bytes === null;
  $('exchange-pairs').replaceChildren(...pairs([
    ['Received', f.bytes(last.received_bytes)],
    ['Codec error', last.codec_error === null ? f.UNKNOWN : `${(100 * last.codec_error).toPrecision(2)} % (RMS, relative to the update)`],
    ['Gathered in', f.duration(last.gather_s)],
    ['Exchanged in', f.duration(last.seconds)],
  ]));
};

const reachable = network => {
  if (network.is_reachable === null) return 'nobody has measured it';
  const answer = network.is_reachable ? 'yes' : network.is_relayed ? 'no, through relays' : 'no';
  return h('span', {}, `${answer}: ${network.reachability}`, network.reachability_fix ? h('small', {}, ` ${network.reachability_fix}`) : null);
};

const spread = ({ spread, spread_in_rounds, spread_round, partner }) => spread === null ? f.UNKNOWN
  : `${f.percent(spread)} from …${partner.slice(-5)} in round ${spread_round}${spread_in_rounds === null ? '' : `, ${spread_in_rounds.toFixed(1)} updates`}`;

const AGREEMENT = { true: ['all state hashes agree', 'good'], false: ['state hashes differ', 'bad'] };
export const showCheckpoints = view => {
  const { agreement, checkpoint } = view;
  const [words, tone] = agreement.is_exempt ? ['gossip: every peer has weights of its own', ''] : AGREEMENT[String(agreement.agrees)] ?? ['', ''];
  say($('agreement-sum'), words);
  $('agreement-sum').className = `sum ${tone}`;
  $('checkpoint-pairs').replaceChildren(...pairs([
    [agreement.round === null ? 'State' : `State after round ${agreement.round}`, agreement.state_hash ? copyable(f.shortHash(agreement.state_hash), agreement.state_hash) : f.UNKNOWN],
    agreement.is_exempt ? ['Spread', spread(agreement)] : ['Same hash', agreement.num_known ? `${agreement.num_same} of ${agreement.num_known} peers` : f.UNKNOWN],
    ['Last checkpoint', checkpoint.round === null ? f.UNKNOWN : `round ${checkpoint.round}, ${checkpoint.saved_at ? f.clock(new Date(checkpoint.saved_at)) : f.UNKNOWN}`],
    ['Size, verified', checkpoint.size_bytes === null ? f.UNKNOWN : `${f.bytes(checkpoint.size_bytes)}, ${checkpoint.is_verified === null ? f.UNKNOWN : checkpoint.is_verified ? 'yes' : 'no'}`],
    ['Kept', checkpoint.num_kept === null ? f.UNKNOWN : [checkpoint.num_kept, ...(checkpoint.kept_bytes === null ? [] : [f.bytes(checkpoint.kept_bytes)])].join(', ')],
    ['Reachable', reachable(view.network)],
    ['Peers', view.network.num_direct === null ? f.UNKNOWN : `${view.network.num_direct} direct, ${view.network.num_libp2p} over libp2p, ${view.network.num_relay_only} through a relay only`],
    ['Sent in all', f.bytes(view.network.sent_bytes)],
    ['Received in all', f.bytes(view.network.received_bytes)],
  ]));
};

export const showAlerts = view => {
  const num = view.alerts.length;
  $('bell').hidden = !num;
  say($('bell-count'), String(num));
  $('bell').setAttribute('aria-label', `${num} alert${num === 1 ? '' : 's'}`);
  $('alert-list').replaceChildren(...(num ? view.alerts.map(alert => h('li', {}, severityIcon(alert.severity),
    h('span', {}, alert.text, alert.fix ? h('small', {}, alert.fix) : null),
    h('time', { datetime: alert.at, title: alert.at }, f.clock(new Date(alert.at)))))
    : [h('li', {}, h('span', {}, 'No alerts.'))]));
};

export const showSpec = view => {
  const run = view.run;
  say($('spec-sum'), run.signer ? `signed by …${f.shortId(run.signer)}` : '');
  $('spec-pairs').replaceChildren(...pairs([
    ['Run id', run.run_id ? copyable(f.shortHash(run.run_id), run.run_id) : f.UNKNOWN],
    ['Model', run.model ?? f.UNKNOWN],
    ['Inner method', run.inner_method ?? f.UNKNOWN],
    ['Outer method', run.outer_method ?? f.UNKNOWN],
    ['Codec', run.codec ?? f.UNKNOWN],
    ['Ends after', run.num_rounds ? `round ${f.integer(run.num_rounds)}` : 'no end is set'],
  ]));
};

export const showIdentity = view => {
  say($('run-name'), cutName(view.run.name));
  say($('node-name'), cutName(view.node.name));
  say($('node-id'), view.node.peer_id ? `…${f.shortId(view.node.peer_id)}` : '');
  say($('version'), `atoll ${view.node.version}`);
};

const MAX_LINES = 100;
export const showLog = view => {
  say($('log-sum'), view.log.length > MAX_LINES ? `last ${MAX_LINES} lines` : '');
  const lines = view.log.slice(-MAX_LINES).reverse();
  $('log-lines').replaceChildren(...(lines.length ? lines.map(line => h('div', { class: line.level },
    `${f.clock(new Date(line.at))}  `, h('b', {}, line.text), line.num_repeats > 1 ? `  × ${line.num_repeats}` : ''))
    : [empty('No line yet.')]));
};

export const startPanels = view => { redrawBars = drawn($('exchange-bars'), width => drawBars(view, width)); };
