// Navigation: the address holds the state, from which everything is drawn.

const PARTS = { top: [heading, tiles, notes, legend], board: [leaderboard], charts: [speed, routing, drafts, latency, tasks, load, split], detail: [queries, setup] };
const NEEDS = { job: ['top', 'board', 'charts', 'detail'], sort: ['board', 'charts'], dir: ['board', 'charts'], filter: ['board', 'charts'], columns: ['board'], off: ['board', 'charts'],
  case: ['detail'], query: ['detail'], group: ['detail'], outcome: ['detail'], find: ['detail'], metric: ['charts'], router: ['charts'], x: ['charts'], times: ['charts'], kinds: ['charts'] };

function read() {
  const given = new URLSearchParams(location.hash.includes('=') ? location.hash.slice(1) : '');
  for (const key of Object.keys(DEFAULTS)) state[key] = given.has(key) ? given.get(key) : DEFAULTS[key];
  if (!data.jobs.includes(state.job)) state.job = data.jobs[0];
}

function write() {
  const given = new URLSearchParams(Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key] && !(key === 'job' && value === data.jobs[0])));
  history.replaceState(null, '', String(given) ? `#${given}` : `${location.pathname}${location.search}`);
}

function go(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  try { write(); } catch { /* a browser may keep files from changing the address */ }
  draw(new Set(changed.flatMap((key) => NEEDS[key])));
}

// Redraws parts, and keeps focus, cursor and scroll positions.
function draw(parts) {
  const active = document.activeElement;
  const id = active && active.id;
  const place = active && active.selectionStart;
  const board = document.querySelector('.board');
  const scroll = board && board.parentNode.scrollLeft;
  const list = document.querySelector('.list');
  const down = list && list.scrollTop;
  hideTip();
  for (const [name, drawings] of Object.entries(PARTS)) if (parts.has(name)) for (const drawing of drawings) drawing();
  if (scroll) document.querySelector('.board').parentNode.scrollLeft = scroll;
  if (down && document.querySelector('.list')) document.querySelector('.list').scrollTop = down;
  if (id && byId(id) && document.activeElement !== byId(id)) {
    byId(id).focus({ preventScroll: true });
    if (typeof place === 'number' && byId(id).setSelectionRange) byId(id).setSelectionRange(place, place);
  }
}

function heading() {
  const total = cases().reduce((sum, item) => sum + item.answered, 0);
  const machines = [...new Set(cases().flatMap((item) => [item.environment.processor, item.environment.accelerators]).filter(Boolean))];
  byId('title').textContent = state.job;
  document.title = `${state.job}: report`;
  byId('summary').textContent = [`${short(cases().length)} test cases`, `${short(total)} answers`, machines.join(', '), data.created].filter(Boolean).join(' · ');
  byId('footer').textContent = `Made by ${data.generator}, ${data.created}. Nothing in this page is loaded from elsewhere.`;
  replace('jobs', data.jobs.length > 1 && data.jobs.map((job) => element('button', { 'aria-pressed': String(job === state.job), onclick: () => go({ ...DEFAULTS, job }) }, job)));
}

function all() { return new Set(Object.keys(PARTS)); }

for (const link of document.querySelectorAll('[data-jump]')) {
  // The address holds the state: a link to a section only scrolls.
  link.addEventListener('click', (event) => { event.preventDefault(); document.querySelector(link.getAttribute('href')).scrollIntoView(); });
}
if ('IntersectionObserver' in window) {
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) document.querySelector(`[data-jump][href="#${entry.target.id}"]`).toggleAttribute('aria-current', false);
    for (const entry of entries) if (entry.isIntersecting) document.querySelector(`[data-jump][href="#${entry.target.id}"]`).setAttribute('aria-current', 'true');
  }, { rootMargin: '-30% 0px -60% 0px' });
  for (const section of document.querySelectorAll('main section')) watch.observe(section);
}
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') { hideTip(); for (const open of document.querySelectorAll('details.menu')) open.open = false; } });
let width = window.innerWidth;
window.addEventListener('resize', () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(new Set(['charts'])); } });
// Paper has another width: everything that depends on it is redrawn.
for (const [event, on] of [['beforeprint', true], ['afterprint', false]]) window.addEventListener(event, () => { printing = on; draw(new Set(['board', 'charts'])); });
window.addEventListener('hashchange', () => { read(); draw(all()); });

cue(byId('sections'), document.querySelector('#sections .wide'));
read();
draw(all());
