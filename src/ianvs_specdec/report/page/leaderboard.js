// The tiles and the leaderboard: sortable, with selectable columns and test cases.

const halfOf = (item, name) => (item.figures[`${name} CI95`] > Math.abs(item.figures[name]) * 1e-9 ? item.figures[`${name} CI95`] : 0);

function tiles() {
  const tile = (what, name, sign) => {
    const [item, ...others] = cases().filter((one) => Number.isFinite(one.figures[name])).sort((a, b) => sign * (b.figures[name] - a.figures[name]));
    if (!item) return null;
    const half = halfOf(item, name);
    const rivals = others.filter((other) => Math.abs(other.figures[name] - item.figures[name]) <= half + halfOf(other, name));
    const doubt = [rivals.length && `the intervals of ${rivals.length} of ${others.length} others overlap`, name !== 'Accuracy' && item.notes.find((note) => note.startsWith('times are doubtful'))];
    const { unit } = columns.get(name);
    const value = unit === 's' ? seconds(item.figures[name]) : short(item.figures[name]) + (unit === 'x' ? '×' : '');
    const error = half ? `± ${unit === 's' ? seconds(half, 2) : short(half, 2)}` : '';
    const extra = ` ${error} ${['s', 'x'].includes(unit) ? '' : unit}`;
    return element('div', { class: 'tile' }, element('span', { class: 'what' }, what), element('b', {}, value, element('small', {}, extra)), element('span', {}, item.name), doubt.filter(Boolean).map((why) => element('span', { class: 'doubt' }, why)));
  };
  const known = cases().filter((item) => Number.isFinite(item.figures.Lossless));
  const lossless = known.filter((item) => item.figures.Lossless === 100);
  replace('tiles',
    tile('Highest accuracy', 'Accuracy', 1),
    tile('Largest speedup over the same weights without drafts', 'Speedup', 1),
    tile('Highest throughput', 'Throughput', 1),
    tile('Shortest latency', 'Latency', -1),
    known.length > 0 && element('div', { class: 'tile' }, element('span', { class: 'what' }, 'Lossless'),
      element('b', {}, `${lossless.length}`, element('small', {}, ` of ${known.length} test cases`)),
      element('span', {}, 'every token of the compared answers equals the model’s own output')));
}

function notes() {
  const found = [...data.notes, ...data.told[state.job]];
  for (const item of cases()) {
    if (item.failures.queries) found.push(`${item.name}: ${item.failures.queries} queries have no answer`);
  }
  replace('notes', found.length > 0 && element('div', { class: 'note', role: 'note' }, element('ul', {}, found.map((note) => element('li', {}, note)))));
}

const chosenColumns = () => (state.columns ? state.columns.split('|') : data.shown).filter((name) => columns.has(name));

function sorted(list) {
  const [name, sign] = [state.sort, state.dir === 'asc' ? 1 : -1];
  if (!name) return list;
  const value = (item) => (columns.has(name) ? item.figures[name] : item.name);
  const missing = (item) => value(item) === null || value(item) === undefined;
  return [...list].sort((a, b) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return sign * (typeof value(a) === 'string' ? value(a).localeCompare(value(b)) : value(a) - value(b));
  });
}

function matching(list) {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (item) => [item.name, item.algorithm, ...Object.entries(item.configuration).map((pair) => pair.join('='))].join(' ').toLowerCase();
  return words.length ? list.filter((item) => words.every((word) => text(item).includes(word))) : list;
}

// Columns of texts have no unit, meter or best value.
const isText = (value) => typeof value === 'string';

// Seconds are shown in the unit that suits the median of a column.
function unitOf(name, list) {
  const column = columns.get(name);
  if (column.unit !== 's') return [1, column.unit === 'x' ? '×' : column.unit];
  const values = list.map((item) => item.figures[name]).filter(Number.isFinite).filter(Boolean).map(Math.abs).sort((a, b) => a - b);
  const middle = values[Math.floor(values.length / 2)] || 0;
  return middle < 1e-3 ? [1e6, 'µs'] : middle < 1 ? [1e3, 'ms'] : [1, 's'];
}

const plainly = (name) => name.toLowerCase().replace(/[^a-z0-9]/g, '');
const RANK = 'Rank on the leaderboard of Ianvs';

function board() {
  const list = sorted(matching(cases()));
  const off = hidden();
  const parts = chosenColumns().map((name) => {
    const values = cases().map((item) => item.figures[name]).filter(Number.isFinite);
    const better = columns.get(name).better;
    const best = better && values.length > 1 && new Set(values).size > 1 ? Math[better > 0 ? 'max' : 'min'](...values) : null;
    return { name, values, best, unit: unitOf(name, cases()), top: Math.max(...values) };
  });
  const head = (name, label, unit, title) => {
    const current = state.sort === name;
    const first = name === 'name' || (columns.get(name) || {}).better < 0 ? 'asc' : 'desc';
    const next = current ? (state.dir === 'asc' ? 'desc' : 'asc') : first;
    const button = element('button', { id: `head-${name}`, 'aria-description': title, onclick: () => go({ sort: name, dir: next }) }, label, current ? (state.dir === 'asc' ? ' ↑' : ' ↓') : '', element('small', {}, unit));
    return element('th', { scope: 'col', 'aria-sort': current && (state.dir === 'asc' ? 'ascending' : 'descending') }, title ? explained(button, label, [title]) : button);
  };
  const row = (item) => element('tr', { class: off.has(item.id) ? 'off' : null },
    element('td', {}, element('input', { type: 'checkbox', 'aria-label': `show ${item.name} in the charts`, checked: !off.has(item.id), onchange: () => toggle(item) })),
    element('td', {}, item.rank === null ? '' : String(item.rank)),
    element('td', {}, element('button', { class: 'name', onclick: () => { go({ case: item.id, query: '' }); byId('queries').scrollIntoView(); } }, item.name),
      plainly(item.algorithm) !== plainly(item.router) && element('div', { class: 'sub' }, item.algorithm), item.judge && element('div', { class: 'sub' }, `judged by ${item.judge}`)),
    parts.map((part) => cell(item, part)));
  return element('table', { class: 'board', id: 'board' },
    element('thead', {}, element('tr', {}, element('th', {}), element('th', { scope: 'col' }, explained(element('button', { id: 'head-rank', 'aria-description': RANK, onclick: () => go({ sort: '', dir: '' }) }, '#', element('small')), '#', [RANK])),
      head('name', 'Test case', '', 'router and back ends'), parts.map((part) => head(part.name, part.name, part.unit[1], columns.get(part.name).about)))),
    element('tbody', {}, list.map(row)));
}

function cell(item, part) {
  const value = item.figures[part.name];
  if (value === null || value === undefined) return element('td', { title: 'undefined here' });
  if (isText(value)) return element('td', { class: 'text' }, value);
  const half = item.figures[`${part.name} CI95`];
  const share = part.top > 0 && value > 0 ? (100 * value) / part.top : 0;
  return element('td', { class: value === part.best ? 'best' : null, title: `${part.name}: ${value}${half ? ` ± ${half} (95 %)` : ''}` },
    short(value * part.unit[0]), element('small', {}, half > Math.abs(value) * 1e-9 ? `± ${short(half * part.unit[0], 2)}` : '\u00a0'),
    element('span', { class: 'meter', style: `--part:${share.toFixed(1)}%` }));
}

function toggle(item) {
  const off = hidden();
  if (!off.delete(item.id)) off.add(item.id);
  go({ off: [...off].join(',') });
}

function leaderboard() {
  const names = new Set(chosenColumns());
  const choose = (name) => [name, names.has(name), (on) => go({ columns: data.columns.map((column) => column.name).filter((known) => (known === name ? on : names.has(known))).join('|') })];
  const list = matching(cases());
  const table = board();
  const further = element('button', { id: 'further', hidden: true, onclick: () => table.parentNode.scrollBy({ left: table.parentNode.clientWidth * 0.6 }) });
  replace('leaderboard', caption('leaderboard', 'Leaderboard', 'Click a heading to sort. ± is half of the 95 % interval over queries, or over repeats; an empty cell is undefined here, never 0. Check boxes select test cases for the charts below.'),
    element('div', { class: 'tools' },
      element('input', { type: 'search', id: 'filter', placeholder: 'Filter, e.g. Eagle cloud', 'aria-label': 'Filter test cases', value: state.filter, oninput: (event) => go({ filter: event.target.value }) }),
      element('button', { onclick: () => go({ off: '' }) }, 'All in the charts'),
      element('button', { onclick: () => { const keep = new Set(list.map((item) => item.id)); go({ off: cases().map((item) => item.id).filter((id) => !keep.has(id)).join(',') }); } }, 'Only those listed'),
      element('span', { class: 'grow' }),
      further, menu('column-menu', 'Columns', data.columns.filter((column) => !column.name.endsWith(' CI95')).map((column) => choose(column.name)))),
    scrolling('Leaderboard', table, () => tellFurther(table, further)), glossary());
}

// The button that scrolls to the columns beyond the right edge.
function tellFurther(table, button) {
  const edge = table.parentNode.getBoundingClientRect().right;
  const beyond = [...table.tHead.rows[0].querySelectorAll('button')].filter((button) => button.closest('th').getBoundingClientRect().right > edge + 2);
  const names = beyond.map((heading) => heading.firstChild.textContent);
  button.hidden = !beyond.length;
  button.textContent = `${beyond.length} more column${beyond.length === 1 ? '' : 's'} →`;
  button.setAttribute('aria-label', `Show further columns: ${names.join(', ')}`);
}

// Definitions of the columns, for devices without a pointer, and for paper.
function glossary() {
  const own = chosenColumns().map((name) => columns.get(name)).filter((column) => column.about);
  const open = printing || (byId('glossary') && byId('glossary').open);
  return own.length > 0 && element('details', { id: 'glossary', open: open || null }, element('summary', {}, 'What the columns mean'),
    element('dl', { class: 'meanings' }, own.map((column) => element('div', {}, element('dt', {}, column.name, column.unit && element('small', {}, ` ${column.unit === 'x' ? '×' : column.unit}`)), element('dd', {}, column.about)))));
}

function legend() {
  const known = cases();
  const names = [...new Set(known.map(backends))];
  const own = [...new Set(known.map((item) => item.router))];
  const group = (title, entries) => element('div', { class: 'key' }, element('b', {}, title), entries);
  replace('legend',
    group('Back end: colour', names.map((name) => element('span', {}, swatch(CIRCLE, colourOf(known.find((item) => backends(item) === name))), name))),
    group('Router: shape, and colour where all is about routing', own.map((name) => element('span', { 'data-router': name }, swatch(shapeOf(name), routerColour(name)), name))));
}
