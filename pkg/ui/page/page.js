// The page: what the server tells of the cluster, drawn. The server sends a snapshot and then news; both say the same things, so that a page that was
// away catches up by itself. Nothing from the cluster becomes markup: it is only ever set as text.
'use strict';

// More nodes or pods than this are drawn in bundles, each of which opens by a click.
const mostNodes = 400, mostPods = 3000, mostBundles = 200;
const mostWaiting = 150;  // squares in the tray; the others are a number
const mostCards = 40;     // spreads; the others are found by name
const mostInCluster = 200; // squares of a FederatedReplicaSet in a cluster; the head has the number
const mostLines = 5;      // of what happened lately
const mostHits = 10;      // pods that a search lists; the others are a number
const mostMoves = 250;    // squares that move at once; the others are there at once
const lineMillis = 2000;  // what happens again within that time adds to the same line
const staleMillis = 12000; // the server is heard of every 5 s
const calm = matchMedia('(prefers-reduced-motion: reduce)');

const $ = id => document.getElementById(id);

// What the server told.
const nodes = new Map(), pods = new Map(), spreads = new Map(); // by name, UID and key
const podsOn = new Map(); // node name ('' is none) to Set of UIDs
let keys = []; // labels by which nodes can be grouped, each with the values that subsets select in their order
let pickedLabel = '', pickedSpread = '';
let clockAhead = 0;  // milliseconds by which the server's clock is ahead of this one

// ---- taking in what the server tells

let source, lastHeard = 0, reopening, began = false;

function open() {
  clearTimeout(reopening);
  source?.close();
  source = new EventSource('events');
  source.addEventListener('snapshot', e => hear(() => takeSnapshot(JSON.parse(e.data))));
  source.addEventListener('news', e => hear(() => takeNews(JSON.parse(e.data))));
  source.addEventListener('beat', e => hear(() => takeBeat(JSON.parse(e.data))));
  source.onerror = () => {
    showState();
    if (source.readyState === EventSource.CLOSED) { // refused; the browser does not try again by itself
      clearTimeout(reopening);
      reopening = setTimeout(open, 2000);
    }
  };
}

function hear(take) {
  lastHeard = Date.now();
  take();
  showState();
}

let trouble = '';
function takeBeat(beat) {
  trouble = beat.trouble;
  clockAhead = Date.parse(beat.now) - Date.now();
}

function showState() {
  const connected = source.readyState === EventSource.OPEN;
  const silent = Date.now() - lastHeard > staleMillis;
  let state = 'live', why = '';
  if (!began) state = 'connecting';
  else if (!connected || silent) {
    state = 'stale';
    why = `Not live: this page has heard nothing since ${clock(lastHeard)} and tries again by itself. Is the program that serves it running?`;
  } else if (trouble) {
    state = 'stale';
    why = `Not live: ${trouble}. What is shown may be old.`;
  }
  setText($('state'), state);
  $('state').dataset.state = state;
  $('trouble').hidden = !why;
  setText($('trouble'), why);
  document.body.classList.toggle('stale', state === 'stale');
}

setInterval(() => {
  if (began && Date.now() - lastHeard > staleMillis) {
    showState();
    if (source.readyState === EventSource.OPEN) open(); // a connection that says nothing is none
  }
}, 1000);

function takeSnapshot(all) {
  setText($('where'), (all.namespace ? 'namespace ' + all.namespace : 'all namespaces') + ' of ' + all.cluster);
  document.title = 'Berth: ' + all.cluster;
  oneNamespace = Boolean(all.namespace);
  const there = { nodes: new Set((all.nodes ?? []).map(n => n.name)), pods: new Set((all.pods ?? []).map(p => p.uid)), spreads: new Set((all.spreads ?? []).map(s => s.key)) };
  all.gone = {
    nodes: [...nodes.keys()].filter(k => !there.nodes.has(k)),
    pods: [...pods.keys()].filter(k => !there.pods.has(k)),
    spreads: [...spreads.keys()].filter(k => !there.spreads.has(k)),
  };
  // Squares come in the order in which they are told, and stay there. A page that is opened anew is in order.
  const order = new Map((all.pods ?? []).map(p => [p, [p.spread ? 0 : 1, p.spread, p.subset, p.name].join(' ')]));
  all.pods?.sort((a, b) => order.get(a) < order.get(b) ? -1 : 1);
  takeNews(all, !began);
  began = true;
}

// What has to be drawn again.
const dirty = { shape: false, tray: false, cards: true, nodes: new Set(), spreads: new Set(), pods: new Set(), gone: [], tones: false, silent: false };

function takeNews(news, silently) {
  if (news.keys) { keys = news.keys; dirty.shape = true; offerKeys(); }
  const gone = news.gone ?? {};
  for (const s of gone.spreads ?? []) { spreads.delete(s); dirty.spreads.add(s); }
  for (const s of news.spreads ?? []) {
    const before = spreads.get(s.key);
    spreads.set(s.key, s);
    dirty.spreads.add(s.key);
    if (before?.order.join() !== s.order.join()) dirty.tones = true;
  }
  for (const n of gone.nodes ?? []) { nodes.delete(n); dirty.shape = true; }
  for (const n of news.nodes ?? []) {
    const before = nodes.get(n.name);
    nodes.set(n.name, n);
    if (!before || groupOf(before) !== groupOf(n)) dirty.shape = true;
    dirty.nodes.add(n.name);
  }
  for (const uid of gone.pods ?? []) {
    const before = pods.get(uid);
    if (!before) continue;
    pods.delete(uid);
    leave(before);
    dirty.pods.delete(uid);
    if (squares.has(uid)) dirty.gone.push(before); // nothing else is kept of what came and went while the page was not drawn, in a tab that is hidden
    if (!silently && before.phase !== 'leaving') tellLately(before, 'gone');
  }
  for (const p of news.pods ?? []) {
    const before = pods.get(p.uid);
    if (before) leave(before);
    pods.set(p.uid, p);
    touch(p.node);
    if (!podsOn.has(where(p))) podsOn.set(where(p), new Set());
    podsOn.get(where(p)).add(p.uid);
    dirty.pods.add(p.uid);
    if (silently) continue;
    if (p.phase === 'leaving' && before && before.phase !== 'leaving') tellLately(p, 'gone');
    else if (p.node && !before?.node) tellLately(p, 'placed');
    else if (!p.node && !before) tellLately(p, 'waits');
  }
  if (silently) dirty.silent = true;
  draw();
}

const where = p => p.node ?? '';

function leave(p) {
  const on = podsOn.get(where(p));
  on?.delete(p.uid);
  if (on?.size === 0) podsOn.delete(where(p));
  touch(p.node);
}

function touch(node) {
  if (node) dirty.nodes.add(node);
  else dirty.tray = true;
}

// ---- what happened lately

let lines = [];

function tellLately(p, what) {
  if (!p.spread) return;
  const spread = shortName(p.spread);
  const place = p.subset || 'no subset';
  const key = [what, p.spread, what === 'waits' ? '' : place].join(' ');
  const now = Date.now();
  let line = lines.find(l => l.key === key && now - l.at < lineMillis);
  if (!line) {
    line = { key, at: now, first: now, n: 0, text: n => ({
      placed: `${spread}: ${count(n, 'pod')} placed in ${place}`,
      waits: `${spread}: ${count(n, 'new pod')}`,
      gone: `${spread}: ${count(n, 'pod')} ${n === 1 ? 'leaves' : 'leave'} ${place}`,
    })[what] };
    lines.unshift(line);
    lines.length = Math.min(lines.length, mostLines);
  }
  line.at = now;
  line.n++;
}

function drawLately() {
  const list = $('lately');
  for (const line of [...lines].reverse()) {
    if (!line.element) {
      line.element = make('li', '', make('time'), make('span'));
      setText(line.element.firstChild, clock(line.first));
      list.prepend(line.element);
    }
    setText(line.element.lastChild, line.text(line.n));
  }
  while (list.children.length > mostLines) list.lastChild.remove();
}

// ---- drawing

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawAll(); });
}

let bundled = false;
const squares = new Map();   // UID to element, of the pods that are drawn
const nodeRows = new Map();  // name to element, of the nodes that are drawn
const bundles = new Map();   // key to {element, rows, names, open}
const bundleOf = new Map();  // node name to bundle, if nodes are bundled
const groupHeads = new Map(); // group to {element, names}
const shortNames = new Map(); // node name to what is written beside its pods

function drawAll() {
  const started = calm.matches || document.hidden || dirty.silent ? null : rectsOf([...dirty.pods, ...dirty.gone.map(p => p.uid)]);
  const wasBundled = bundled;
  bundled = nodes.size > mostNodes * (wasBundled ? .9 : 1) || pods.size > mostPods * (wasBundled ? .9 : 1);
  if (bundled !== wasBundled) dirty.shape = true;
  if (dirty.tones) for (const uid of squares.keys()) paint(uid);
  if (dirty.shape) drawShape();
  for (const p of dirty.gone) if (!pods.has(p.uid)) removeSquare(p.uid, started?.get(p.uid));
  if (dirty.tray || dirty.shape) drawTray();
  const changedBundles = new Set();
  for (const name of dirty.nodes) {
    if (bundleOf.has(name)) changedBundles.add(bundleOf.get(name));
    if (nodeRows.has(name)) drawNode(name);
  }
  drawBundles(changedBundles);
  for (const uid of dirty.pods) {
    if (squares.get(uid)?.isConnected) paint(uid);
    else squares.delete(uid); // its node is in a bundle
  }
  if (seeking.length && (dirty.pods.size || dirty.gone.length)) drawFound();
  drawCards();
  drawClusters();
  drawHeads();
  keepOneTabStop();
  drawLately();
  if (started) move(started);
  dirty.shape = dirty.tray = dirty.tones = dirty.silent = false;
  dirty.nodes.clear(); dirty.spreads.clear(); dirty.pods.clear(); dirty.gone = [];
  refreshTip();
  refreshOne();
}

const groupKey = () => keys.find(k => k.label === pickedLabel) ?? keys[0];
const groupOf = n => n.in?.[groupKey()?.label] ?? '';

// byGroup puts groups that subsets select first, in the order of the subsets, and nodes without the label last.
function byGroup(a, b) {
  const values = groupKey()?.values ?? [];
  const rank = g => g === '' ? values.length + 1 : values.includes(g) ? values.indexOf(g) : values.length;
  return rank(a) - rank(b) || natural(a, b);
}

// drawShape puts groups, and in them nodes or bundles of nodes, where they belong.
function drawShape() {
  const groups = new Map();
  for (const n of nodes.values()) {
    const g = groupOf(n);
    if (!groups.has(g)) groups.set(g, []);
    groups.get(g).push(n.name);
  }
  const opened = new Set([...bundles.values()].filter(b => b.open).map(b => b.key));
  bundles.clear(); bundleOf.clear(); groupHeads.clear(); shortNames.clear();
  const known = new Set();
  const size = bundleSize();
  const drawn = [...groups.keys()].sort(byGroup).map(g => {
    const names = groups.get(g).sort(natural);
    const head = make('span'), title = make('h2');
    title.append(g || (groupKey() ? 'other nodes' : 'all nodes'), head);
    const section = make('section', 'group', title);
    section.dataset.group = g;
    section.setAttribute('aria-label', g ? `nodes of ${g}` : 'other nodes');
    groupHeads.set(g, { element: head, names });
    shorten(names);
    if (!bundled) {
      for (const name of names) { known.add(name); section.append(nodeRow(name)); }
      return section;
    }
    for (let i = 0; i < names.length; i += size) {
      const b = makeBundle(g + '/' + names[i], names.slice(i, i + size), opened);
      section.append(b.element, b.rows);
      if (b.open) for (const name of b.names) { known.add(name); b.rows.append(nodeRow(name)); }
    }
    return section;
  });
  for (const [name, row] of nodeRows) {
    if (known.has(name)) continue;
    row.remove();
    nodeRows.delete(name);
  }
  $('groups').replaceChildren(...drawn);
  for (const name of known) drawNode(name);
  drawBundles(bundles.values());
  for (const [uid, square] of squares) if (!square.isConnected) squares.delete(uid);
  keepOneTabStop();
}

// shorten leaves out of the names of a group what all of them begin with, if they are long: the end is what tells them apart.
function shorten(names) {
  let same = names.length > 1 ? names[0].length : 0;
  for (const name of names) while (!name.startsWith(names[0].slice(0, same))) same--;
  const shortest = names.reduce((least, name) => Math.min(least, name.length), Infinity);
  while (same > 0 && !(/[-.]/.test(names[0][same - 1]) && shortest - same >= 4)) same--;
  for (const name of names) shortNames.set(name, same > 0 && name.length > 14 ? '…' + name.slice(same) : name);
}

function bundleSize() {
  const least = nodes.size / mostBundles;
  return [10, 20, 25, 50, 100, 200, 500, 1000].find(s => s >= least) ?? Math.ceil(least);
}

function makeBundle(key, names, opened) {
  const name = make('span', 'name'), told = make('span', 'told'), stack = make('span', 'stack');
  const element = make('button', 'bundle', name, told, stack), rows = make('div');
  setText(name, names.length === 1 ? names[0] : `${names[0]} … ${ending(names[0], names[names.length - 1])}`);
  name.title = `${names[0]} to ${names[names.length - 1]}`;
  const b = { key, names, element, rows, told, stack, open: opened.has(key) };
  element.setAttribute('aria-expanded', b.open);
  element.addEventListener('click', () => {
    b.open = !b.open;
    element.setAttribute('aria-expanded', b.open);
    if (b.open) {
      for (const n of b.names) b.rows.append(nodeRow(n));
      for (const n of b.names) drawNode(n);
    } else {
      for (const n of b.names) { nodeRows.get(n)?.remove(); nodeRows.delete(n); }
      for (const [uid, square] of squares) if (!square.isConnected) squares.delete(uid);
    }
    keepOneTabStop();
  });
  bundles.set(key, b);
  for (const n of names) bundleOf.set(n, b);
  return b;
}

let mostInBundle = 1; // pods; the width of a whole stack

function drawBundles(changed) {
  changed = new Set(changed);
  for (const b of changed) b.places = countPlaces(b.names);
  const most = Math.max(1, ...[...bundles.values()].map(b => b.places.sum));
  if (most !== mostInBundle) changed = bundles.values();
  mostInBundle = most;
  for (const b of changed) drawBundle(b);
}

function countPlaces(names) {
  const places = { of: new Map(), sum: 0 };
  for (const name of names) for (const uid of podsOn.get(name) ?? []) {
    const place = placeOf(pods.get(uid));
    places.of.set(place, (places.of.get(place) ?? 0) + 1);
    places.sum++;
  }
  return places;
}

// drawBundle says how many pods a bundle of nodes holds, and of which subsets.
function drawBundle(b) {
  const places = [...b.places.of.keys()].sort(natural);
  setText(b.told, `${count(b.names.length, 'node')}, ${count(b.places.sum, 'pod')}`);
  fit(b.stack, places.length, () => make('i'));
  places.forEach((place, i) => {
    b.stack.children[i].dataset.place = colorOf(place);
    b.stack.children[i].style.width = 100 * b.places.of.get(place) / mostInBundle + '%';
  });
  b.element.setAttribute('aria-label', `${b.names[0]} to ${b.names[b.names.length - 1]}: ${count(b.names.length, 'node')}, ` +
    (places.map(p => `${count(b.places.of.get(p), 'pod')} ${placeText(p)}`).join(', ') || 'no pods'));
}

function nodeRow(name) {
  let row = nodeRows.get(name);
  if (!row) {
    row = make('div', 'node', make('span', 'name'), make('div', 'pods'));
    row.dataset.node = name;
    row.setAttribute('role', 'group');
    nodeRows.set(name, row);
  }
  return row;
}

function drawNode(name) {
  const row = nodeRows.get(name), n = nodes.get(name), on = podsOn.get(name) ?? new Set();
  if (!n) return;
  const label = row.firstChild;
  const written = shortNames.get(name) + '/' + (n.state ?? '');
  if (label.dataset.written !== written) {
    label.replaceChildren(shortNames.get(name));
    label.title = name;
    label.dataset.written = written;
    if (n.state) {
      const state = make('em');
      setText(state, n.state);
      label.append(state);
      row.dataset.state = n.state;
    } else delete row.dataset.state;
  }
  row.setAttribute('aria-label', `${name}${n.state ? ', ' + n.state : ''}, ${count(on.size, 'pod')}`);
  putSquares(row.lastChild, on);
}

// putSquares has the element hold the squares of these pods. Those that are there keep their places.
function putSquares(element, uids) {
  for (const square of [...element.children]) if (!uids.has(square.dataset.uid)) {
    square.remove();
    if (squares.get(square.dataset.uid) === square && !pods.has(square.dataset.uid)) squares.delete(square.dataset.uid);
  }
  for (const uid of uids) {
    const square = squareOf(uid);
    if (square.parentNode !== element) element.append(square);
  }
}

function squareOf(uid) {
  let square = squares.get(uid);
  if (!square) {
    square = make('b', 'pod');
    square.dataset.uid = uid;
    square.tabIndex = -1;
    square.setAttribute('role', 'button');
    squares.set(uid, square);
    paint(uid);
  }
  return square;
}

function paint(uid) {
  const square = squares.get(uid), p = pods.get(uid);
  if (!square || !p) return;
  const place = placeOf(p), data = square.dataset;
  data.place = colorOf(place);
  data.phase = p.phase;
  data.pod = p.name;
  data.node = p.node ?? '';
  data.subset = p.subset ?? '';
  if (p.adopted) data.adopted = ''; else delete data.adopted;
  setText(square, place === 'other' ? '' : place !== 'none' ? place : p.node ? '–' : '');
  square.classList.toggle('dim', pickedSpread !== '' && p.spread !== pickedSpread || !isFound(p));
  square.setAttribute('aria-label', sentence(p));
}

function removeSquare(uid, rect) {
  const square = squares.get(uid);
  squares.delete(uid);
  if (!square) return;
  const hadTabStop = square.tabIndex === 0;
  square.remove();
  if (rect) fade(square, rect);
  if (hadTabStop) keepOneTabStop();
}

// placeOf a pod is the number of its subset in the order of the spread, 'none' or 'other'.
function placeOf(p) {
  if (!p.spread) return 'other';
  const index = p.subset ? spreads.get(p.spread)?.order.indexOf(p.subset) ?? -1 : -1;
  return index < 0 ? 'none' : String(index + 1);
}

const colorOf = place => isNaN(place) ? place : String((place - 1) % 8 + 1);
const placeText = place => place === 'other' ? 'of no spread' : place === 'none' ? 'in no subset' : 'in subset ' + place;

function drawTray() {
  const waiting = [...podsOn.get('') ?? []];
  setText($('tray-count'), waiting.length);
  $('tray').toggleAttribute('data-empty', waiting.length === 0);
  putSquares($('tray-pods'), new Set(waiting.slice(0, mostWaiting)));
  for (const uid of waiting.slice(mostWaiting)) squares.delete(uid);
  setText($('more-pods'), waiting.length > mostWaiting ? `and ${waiting.length - mostWaiting} more` : '');
  const why = new Map();
  for (const uid of waiting) {
    const reason = pods.get(uid).why ?? '';
    why.set(reason, (why.get(reason) ?? 0) + 1);
  }
  const most = [...why].sort((a, b) => b[1] - a[1] || natural(a[0], b[0])).slice(0, 3);
  const list = $('reasons');
  fit(list, most.length, () => make('li', '', make('b'), make('span')));
  most.forEach(([reason, n], i) => {
    setText(list.children[i].firstChild, count(n, 'pod'));
    setText(list.children[i].lastChild, reason);
    list.children[i].title = reason;
  });
}

function drawHeads() {
  for (const head of groupHeads.values()) {
    const n = head.names.reduce((sum, name) => sum + (podsOn.get(name)?.size ?? 0), 0);
    setText(head.element, `${count(head.names.length, 'node')}, ${count(n, 'pod')}`);
  }
  const waiting = podsOn.get('')?.size ?? 0;
  setText($('counts'), `${count(nodes.size, 'node')}, ${count(pods.size, 'pod')}` + (waiting ? `, ${waiting} waiting` : ''));
}

// ---- spreads

const cards = new Map(); // key to element

function drawCards() {
  if (!dirty.spreads.size && !dirty.cards) return;
  dirty.cards = false;
  const all = [...spreads.keys()].sort(natural);
  $('find').hidden = all.length <= 8;
  const wanted = $('find').value.trim().toLowerCase();
  const found = all.filter(k => k.toLowerCase().includes(wanted));
  const shown = found.slice(0, mostCards);
  for (const [key, card] of cards) if (!shown.includes(key)) { card.remove(); cards.delete(key); }
  let at = $('cards').firstChild;
  for (const key of shown) {
    let card = cards.get(key);
    const fresh = !card;
    if (fresh) cards.set(key, card = makeCard(key));
    if (fresh || dirty.spreads.has(key)) drawCard(card, spreads.get(key));
    if (card === at) at = at.nextSibling; else $('cards').insertBefore(card, at);
  }
  setText($('more-cards'), found.length > shown.length ? `and ${found.length - shown.length} more: find them by name` :
    all.length === 0 ? 'There is no WorkloadSpread, UnitedDeployment or FederatedReplicaSet yet.' : found.length === 0 ? 'No spread has such a name.' : '');
  if (pickedSpread && !spreads.has(pickedSpread)) pick('');
}

// drawClusters draws each cluster of a federation as a group, with a row of squares for each FederatedReplicaSet: what it is asked for there, full if it is available. Their pods are in the clusters.
function drawClusters() {
  const rows = [...spreads.values()].filter(s => s.of.kind === 'FederatedReplicaSet').sort((a, b) => natural(a.key, b.key))
    .flatMap(s => (s.subsets ?? []).map(of => ({ s, of, place: String(s.order.indexOf(of.name) + 1) })));
  const list = $('clusters'), told = JSON.stringify(rows.map(({ s, of }) => [s.key, of]));
  if (list.dataset.told === told) return;
  list.dataset.told = told;
  list.replaceChildren(...[...new Set(rows.map(r => r.of.name))].sort(natural).map(cluster => {
    const here = rows.filter(r => r.of.name === cluster), sum = get => here.reduce((n, r) => n + get(r.of), 0);
    const title = make('h2', '', cluster, make('span', '', `${sum(of => of.pods)} of ${sum(of => of.quota)} available`));
    const section = make('section', 'group', title, ...here.map(({ s, of, place }) => {
      const name = make('span', 'name', s.metadata.name), pods = make('span', 'pods');
      name.title = s.key;
      if (!of.schedulable) name.append(make('em', '', of.message.split(':')[0]));
      for (let i = 0; i < Math.min(Math.max(of.quota, of.pods), mostInCluster); i++) {
        const square = make('b', 'pod');
        square.dataset.place = i < of.pods ? colorOf(place) : 'none';
        square.dataset.phase = i < of.pods ? 'ready' : 'pending';
        pods.append(square);
      }
      const row = make('div', 'node', name, pods);
      row.title = `${s.metadata.name}: ${of.pods} of ${of.quota} available in ${cluster}${of.message ? '. ' + of.message : ''}`;
      return row;
    }));
    section.dataset.cluster = cluster;
    section.setAttribute('aria-label', `cluster ${cluster}`);
    return section;
  }));
}

function makeCard(key) {
  const button = make('button'), head = make('header', '', make('h3', '', button), make('span', 'ready'));
  button.type = 'button';
  button.title = 'show its pods alone';
  button.addEventListener('click', () => pick(pickedSpread === key ? '' : key));
  const next = make('p', 'next', make('b'), ' ', make('span'));
  setText(next.firstChild, 'next');
  const card = make('article', 'spread', head, make('p', 'about'), make('div', 'subsets'), make('p', 'wants'), next, make('ol', 'moves'));
  card.dataset.spread = key;
  return card;
}

function drawCard(card, s) {
  const [head, about, subsets, wants, next, moves] = card.children;
  const button = head.firstChild.firstChild, ready = head.lastChild;
  setText(button, shortName(s.key));
  button.setAttribute('aria-pressed', pickedSpread === s.key);
  card.toggleAttribute('data-picked', pickedSpread === s.key);
  card.setAttribute('aria-label', 'spread ' + s.key);
  ready.dataset.ready = s.ready ? 'yes' : s.reason ? 'no' : 'unknown';
  setText(ready, s.ready ? 'Ready' : s.reason || 'Unknown');
  ready.title = s.message ?? '';
  setText(about, [s.target, s.strategy, `${count(s.replicas, 'pod')} asked for`, s.paused && 'paused'].filter(Boolean).join(', '));
  const rows = s.subsets ?? [];
  fit(subsets, rows.length, makeSubset);
  rows.forEach((row, i) => drawSubset(subsets.children[i], row, String(s.order.indexOf(row.name) + 1), s.byTarget));
  setText(wants, [[s.pending, 'pending'], [s.unplaced, 'in no subset'], [s.adopted, 'bound by others'], [s.surplus, 'above quota']]
    .filter(([n]) => n > 0).map(([n, what]) => `${count(n, 'pod')} ${what}`).concat(s.notes ?? []).join(', '));
  setText(next.lastChild, s.next);
  drawMoves(moves, s);
}

function makeSubset() {
  const meter = make('div', 'meter', make('i'));
  meter.setAttribute('role', 'meter');
  return make('div', 'subset', make('b', 'pod swatch'), make('span', 'name'), make('span', 'kept'), meter, make('span', 'waits'));
}

function drawSubset(row, s, place, byTarget) {
  const [swatch, name, kept, meter, waits] = row.children;
  const whole = byTarget ? s.target : s.quota ?? s.target;
  row.dataset.subset = s.name;
  swatch.dataset.place = colorOf(place);
  swatch.dataset.phase = 'ready';
  setText(swatch, place);
  swatch.setAttribute('aria-hidden', 'true');
  setText(name, s.name);
  name.title = s.name;
  const parts = s.revisions?.map(r => r.pods) ?? [s.pods], most = Math.max(...parts); // each revision has the quota for itself
  const each = parts.length > 1 ? ' each' : '', quota = s.quota === undefined ? ', no limit' : ` of ${s.quota}${each}`;
  const held = parts.join(' + '), limit = byTarget ? `, target ${s.target}${each}` : quota;
  if (kept.textContent !== held + limit) kept.replaceChildren(held, make('i', '', limit));
  meter.dataset.place = colorOf(place);
  meter.toggleAttribute('data-over', s.over > 0);
  meter.firstChild.style.transform = `scaleX(${whole > 0 ? Math.min(1, most / whole) : most > 0 ? 1 : 0})`;
  meter.setAttribute('aria-label', `kept in ${s.name}`);
  meter.setAttribute('aria-valuemin', 0);
  meter.setAttribute('aria-valuenow', most);
  meter.setAttribute('aria-valuemax', Math.max(whole, most));
  meter.setAttribute('aria-valuetext', held + limit);
  setText(waits, s.schedulable ? '' : s.message || 'pods wait for a node of it');
}

// drawMoves draws a time line: past moves, and at its end what holds the next one.
function drawMoves(list, s) {
  const told = JSON.stringify([s.moves, s.wait]);
  if (list.dataset.told === told) return;
  list.dataset.told = told;
  list.setAttribute('aria-label', 'moves of ' + s.key);
  const names = m => `${m.from || 'no subset'} → ${m.to || 'no subset'}`;
  const rows = (s.moves ?? []).slice(-5).map(m => make('li', '', timeOf(m.time), make('span', '', `${names(m)}: ${m.reason || 'moved'}${m.round > 1 ? `, round ${m.round}` : ''}`)));
  if (s.wait) {
    const row = make('li', 'hold', s.wait.until ? timeOf(s.wait.until) : make('span'), make('span', '', s.wait.reason, make('span', 'left')));
    row.title = s.wait.text;
    rows.push(row);
  }
  list.replaceChildren(...rows);
  countDown();
}

// countDown says how long the waits still take.
function countDown() {
  for (const row of document.querySelectorAll('.moves .hold')) {
    const until = row.firstChild.dateTime;
    const seconds = until ? Math.max(0, Math.ceil((Date.parse(until) - Date.now() - clockAhead) / 1000)) : NaN;
    setText(row.querySelector('.left'), isNaN(seconds) ? '' : seconds ? ` holds the next, for ${duration(seconds)}` : ' is over');
  }
}
setInterval(countDown, 1000);

const duration = s => new Date(1000 * s).toISOString().slice(s < 3600 ? 14 : 11, 19);

function timeOf(time) {
  const element = make('time', '', clock(time));
  element.dateTime = time;
  element.title = new Date(time).toLocaleString();
  return element;
}

function pick(key) {
  pickedSpread = key;
  for (const uid of squares.keys()) paint(uid);
  for (const [k, card] of cards) drawCard(card, spreads.get(k));
}

// ---- moving

function rectsOf(uids) {
  const rects = new Map();
  for (const uid of uids) {
    if (rects.size === mostMoves) break;
    const square = squares.get(uid);
    if (square?.isConnected) rects.set(uid, square.getBoundingClientRect());
  }
  return rects;
}

// move has squares that are in another place than before go there, and new ones appear.
function move(before) {
  let n = 0;
  const moves = [];
  for (const uid of dirty.pods) {
    if (n === mostMoves) break;
    const square = squares.get(uid);
    if (!square?.isConnected) continue;
    const was = before.get(uid), is = square.getBoundingClientRect();
    if (!inSight(is) && !(was && inSight(was))) continue;
    if (!was) moves.push([square, [{ transform: 'scale(.2)', opacity: 0 }, {}], 300]);
    else if (Math.abs(was.x - is.x) + Math.abs(was.y - is.y) > 4) {
      moves.push([square, [{ transform: `translate(${was.x - is.x}px, ${was.y - is.y}px)`, zIndex: 1 }, { zIndex: 1 }], 600]);
    } else continue;
    n++;
  }
  for (const [square, frames, duration] of moves) square.animate(frames, { duration, easing: 'cubic-bezier(.3, .1, .2, 1)' });
}

const inSight = r => r.bottom > 0 && r.top < innerHeight;

// fade leaves a picture of a square that is gone, for a moment.
function fade(square, rect) {
  if (!inSight(rect)) return;
  const ghost = square.cloneNode(true);
  for (const name of ['data-uid', 'data-pod', 'data-node', 'data-subset', 'role', 'aria-label', 'tabindex']) ghost.removeAttribute(name);
  ghost.setAttribute('aria-hidden', 'true');
  ghost.classList.add('ghost');
  ghost.style.left = rect.left + 'px';
  ghost.style.top = rect.top + 'px';
  document.body.append(ghost);
  const end = { transform: 'translateY(8px) scale(.4)', opacity: 0 };
  ghost.animate([{}, end], { duration: 400, easing: 'ease-in', fill: 'forwards' }).onfinish = () => ghost.remove();
}

// ---- one pod, told

let told = '';

function showTip(square) {
  const p = pods.get(square?.dataset.uid);
  document.querySelector('.lit')?.classList.remove('lit');
  told = p ? p.uid : '';
  $('tip').hidden = !p;
  if (!p) return;
  square.classList.add('lit');
  fillTip(p);
  const at = square.getBoundingClientRect(), tip = $('tip').getBoundingClientRect();
  $('tip').style.left = Math.max(8, Math.min(at.left, innerWidth - tip.width - 8)) + 'px';
  $('tip').style.top = (at.bottom + 8 + tip.height > innerHeight ? Math.max(8, at.top - tip.height - 8) : at.bottom + 8) + 'px';
}

function fillTip(p) {
  $('tip').replaceChildren(make('strong', '', p.name), factList(p));
}

function factList(p) {
  return make('dl', '', ...facts(p).flatMap(([term, text]) => [make('dt', '', term), make('dd', '', text)]));
}

function facts(p) {
  return [
    ['namespace', p.namespace],
    ['spread', p.spread ? shortName(p.spread) : 'none'],
    ...(p.spread ? [['subset', (p.subset || (p.node ? 'none' : 'none yet')) + (p.adopted ? ', adopted' : '')]] : []),
    ['node', p.node || 'none yet'],
    ['phase', p.phase],
    ...(p.why ? [['why', p.why]] : []),
  ];
}

const sentence = p => [p.name, ...facts(p).slice(1).map(([term, text]) => `${term} ${text}`)].join(', ');

function refreshTip() {
  if (!told) return;
  const square = squares.get(told);
  if (square?.isConnected && pods.has(told)) fillTip(pods.get(told));
  else showTip(null);
}

// ---- one pod

let one = ''; // UID of the pod that is shown alone

function explain(uid) {
  const p = pods.get(uid);
  if (!p) return;
  one = uid;
  $('one').hidden = false;
  setText($('one-why'), `kubectl berth explain ${p.name} -n ${p.namespace}`);
  refreshOne();
  $('one').focus();
}

function refreshOne() {
  if (!one) return;
  const p = pods.get(one);
  setText($('one-title'), p ? p.name : $('one-title').textContent.replace(/( is gone)?$/, ' is gone'));
  if (p) $('one-facts').replaceChildren(...factList(p).children);
}

function closeOne() {
  if (!one) return;
  const square = squares.get(one);
  one = '';
  $('one').hidden = true;
  (square?.isConnected ? square : $('seek')).focus({ preventScroll: true });
  showTip(null);
}

$('one-close').addEventListener('click', closeOne);

// ---- search

let seeking = []; // words that a pod must have, each with the fields in which it may be
const fields = { name: p => p.name, node: where, subset: p => p.subset ?? '' };

const isFound = p => seeking.every(word => word.in.some(field => field(p).toLowerCase().includes(word.text)));

function seek(text) {
  seeking = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
    const [, field, rest] = word.match(/^(?:(name|node|subset):)?(.*)$/);
    return { in: field ? [fields[field]] : Object.values(fields), text: rest };
  });
  for (const uid of squares.keys()) paint(uid);
  drawFound();
}

function drawFound() {
  $('hits').hidden = !seeking.length;
  const hits = seeking.length ? [...pods.values()].filter(isFound) : [], shown = hits.slice(0, mostHits);
  setText($('hits-count'), hits.length ? `${count(hits.length, 'pod')} found` + (hits.length > shown.length ? `, the first ${shown.length}:` : ':') : 'no pod is found');
  fit($('found'), shown.length, () => make('li', '', make('button')));
  shown.forEach((p, i) => {
    const button = $('found').children[i].firstChild;
    button.type = 'button';
    button.dataset.uid = p.uid;
    setText(button, `${p.name}, ${p.subset || 'no subset'}, ${p.node || 'no node'}`);
  });
}

// reveal opens what hides a pod, and explains the pod.
function reveal(uid) {
  const bundle = bundleOf.get(pods.get(uid)?.node);
  if (bundle && !bundle.open) bundle.element.click();
  squares.get(uid)?.scrollIntoView({ block: 'nearest' });
  explain(uid);
}

$('seek').addEventListener('input', e => seek(e.target.value));
$('seek').addEventListener('keydown', e => {
  if (e.key === 'Enter' && $('found').firstChild) reveal($('found').firstChild.firstChild.dataset.uid);
  if (e.key !== 'Escape') return;
  e.target.value = '';
  seek('');
  e.target.blur();
});
$('found').addEventListener('click', e => { if (e.target.dataset.uid) reveal(e.target.dataset.uid); });

// ---- mouse, touch and keys

const map = $('cluster');
const squareAt = e => e.target.closest?.('.pod[data-uid]');
map.addEventListener('pointerover', e => { if (e.pointerType !== 'touch') showTip(squareAt(e)); });
map.addEventListener('pointerleave', () => showTip(null));
map.addEventListener('click', e => {
  const uid = squareAt(e)?.dataset.uid;
  if (uid) explain(uid);
});
map.addEventListener('focusin', e => { const square = squareAt(e); if (square) { stopHere(square); showTip(square); } });
map.addEventListener('focusout', () => showTip(null));
document.addEventListener('keydown', e => {
  if (e.key === 'Escape') { showTip(null); closeOne(); }
  if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || e.target.matches('input:not([type=range]), select')) return;
  e.preventDefault();
  $('seek').focus();
  $('seek').select();
});
addEventListener('scroll', () => showTip(null), { passive: true });

// One square at a time can be reached by the Tab key; arrows go from it to the others.
map.addEventListener('keydown', e => {
  const square = squareAt(e);
  if (square && (e.key === 'Enter' || e.key === ' ')) {
    e.preventDefault();
    explain(square.dataset.uid);
  }
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 'next', ArrowUp: 'previous', Home: 'first', End: 'last' }[e.key];
  if (!square || !step) return;
  e.preventDefault();
  const all = [...map.querySelectorAll('.pod[data-uid]')].filter(s => s === square || !s.classList.contains('dim')), i = all.indexOf(square);
  let to;
  if (step === 'first') to = all[0];
  else if (step === 'last') to = all[all.length - 1];
  else if (step === 'next') to = all.slice(i).find(s => s.parentNode !== square.parentNode);
  else if (step === 'previous') {
    to = all.slice(0, i).findLast(s => s.parentNode !== square.parentNode);
    to = to?.parentNode.firstElementChild;
  } else to = all[i + step];
  to?.focus();
});

function stopHere(square) {
  for (const other of map.querySelectorAll('.pod[tabindex="0"]')) other.tabIndex = -1;
  square.tabIndex = 0;
}

function keepOneTabStop() {
  if (map.querySelector('.pod[data-uid][tabindex="0"]')) return;
  const first = map.querySelector('.pod[data-uid]');
  if (first) first.tabIndex = 0;
}

function offerKeys() {
  $('grouping').hidden = keys.length === 0;
  const labels = keys.map(k => k.label);
  $('by').replaceChildren(...['', ...labels].map(label => {
    const option = make('option');
    option.value = label;
    setText(option, label || `${labels[0]} (automatic)`);
    return option;
  }));
  if (!labels.includes(pickedLabel)) pickedLabel = '';
  $('by').value = pickedLabel;
}

$('by').addEventListener('change', e => { pickedLabel = e.target.value; dirty.shape = true; draw(); });
$('find').addEventListener('input', () => { dirty.cards = true; draw(); });

// ---- small things

function make(tag, className = '', ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function setText(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

// ending is the last name without the words with which the first one begins too.
function ending(first, last) {
  let same = 0;
  for (let i = 0; i < last.length && first[i] === last[i]; i++) if (/[-.]/.test(last[i])) same = i + 1;
  return last.slice(same);
}

// fit has an element hold n children.
function fit(element, n, makeOne) {
  while (element.children.length > n) element.lastChild.remove();
  while (element.children.length < n) element.append(makeOne());
}

const collator = new Intl.Collator('en', { numeric: true });
const natural = (a, b) => collator.compare(a, b);
const count = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;
const clock = time => new Date(time).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });

// shortName leaves the namespace out if only one is shown.
let oneNamespace = false;
const shortName = key => oneNamespace ? key.slice(key.indexOf('/') + 1) : key;

open();
