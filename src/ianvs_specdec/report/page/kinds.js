// Figures by kind of query: the benchmark's categories or a few kinds by default, every kind on demand.

const MAX_BARS = 8;
const MAX_KINDS = 12;

// The kinds to draw, and all kinds. Categories merge many kinds, such as MMLU's 57 subjects into four.
function kindsToDraw(list) {
  const of = (key) => [...new Set(list.flatMap((item) => Object.keys(item[key])))].sort();
  const every = of('groups');
  const together = of('categories');
  if (state.kinds === 'all') return { key: 'groups', names: every, every };
  if (together.length) return { key: 'categories', names: together, every };
  const queries = (name) => Math.max(...list.map((item) => (item.groups[name] || { Queries: 0 }).Queries));
  const most = new Set([...every].sort((a, b) => queries(b) - queries(a)).slice(0, MAX_KINDS));
  return { key: 'groups', names: every.filter((name) => most.has(name)), every };
}

function tasks() {
  const about = 'Figures by kind of query, with 95 % intervals: the selected test cases of one router, in the leaderboard’s order.';
  const ticked = sorted(matching(shown())).filter((item) => Object.keys(item.groups).length);
  const count = (router) => ticked.filter((item) => item.router === router).length;
  const own = [...new Set(ticked.map((item) => item.router))];
  const router = own.includes(state.router) ? state.router : [...own].sort((a, b) => count(b) - count(a))[0];
  const listed = ticked.filter((item) => item.router === router);
  const list = listed.slice(0, MAX_BARS);
  const { key: kind, names, every } = kindsToDraw(list);
  const part = (item, name) => item[kind][name] || {};
  const metrics = ['Speedup', 'Accuracy', 'Mean Accepted Tokens', 'Throughput', 'Latency', 'Edge Ratio'].filter((metric) => list.some((item) => names.some((name) => Number.isFinite(part(item, name)[metric]))));
  if (!metrics.length) {
    replace('tasks', caption('tasks', 'Kinds of queries', about), nothing('The queries here are of one kind, or have no results.'));
    return;
  }
  const metric = metrics.includes(state.metric) ? state.metric : metrics[0];
  const whole = state.kinds === 'all';
  const choice = element('div', { class: 'tools' }, metrics.map((name) => element('button', { 'aria-pressed': String(name === metric), onclick: () => go({ metric: name }) }, name)),
    own.length > 1 && element('select', { 'aria-label': 'Router', onchange: (event) => go({ router: event.target.value }) }, own.map((name) => element('option', { value: name, selected: name === router }, name))),
    (whole ? every.length > MAX_KINDS || list.some((item) => Object.keys(item.categories).length) : every.length > names.length)
      && element('button', { id: 'kinds', 'aria-pressed': String(whole), onclick: () => go({ kinds: whole ? '' : 'all' }) }, `All ${every.length} kinds`));
  const key = legendOf(list.map((item) => [SQUARE, ownColour(item, list), item.name]),
    listed.length > list.length && element('span', {}, `(${listed.length - list.length} more not drawn)`));
  const pooled = ['Speedup', 'Mean Accepted Tokens'].includes(metric) && list.some((item) => !item.alone)
    && element('p', { class: 'quiet' }, 'Two models answered here: kinds also differ by the model that this router selects for them.');
  replace('tasks', caption('tasks', 'Kinds of queries', about), choice, key, element('figure', {}, bars(list, names, metric, part)), pooled);
}

// Height of the strip with the axis.
const AXIS = 18;

function bars(list, names, metric, part) {
  const tall = 9;
  const band = list.length * (tall + 1.5) + 12;
  const width = room('tasks');
  const [left, right] = [width < 700 ? 110 : 190, 24];
  const value = (item, name) => part(item, name)[metric];
  const half = (item, name) => part(item, name)[`${metric} CI95`] || 0;
  const high = Math.max(...list.flatMap((item) => names.map((name) => (value(item, name) || 0) + half(item, name)))) || 1;
  const sx = (number) => left + (number / high) * (width - left - right);
  const format = columns.get(metric) && columns.get(metric).unit === 's' ? (number) => seconds(number, 2) : (number) => short(number, 3);
  const values = ticks(0, high, width < 700 ? 3 : 6);
  // One SVG per kind, so that pages can break between them.
  const strip = (height, label) => graphic('svg', { viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': label },
    values.map((tick) => graphic('line', { class: 'grid', x1: sx(tick), x2: sx(tick), y1: height === AXIS ? AXIS - 4 : 0, y2: height })),
    metric === 'Speedup' && height !== AXIS && graphic('line', { class: 'refline', x1: sx(1), x2: sx(1), y1: 0, y2: height }));
  const axis = strip(AXIS, `${metric} by kind of query`);
  axis.append(tickTexts(values, sx, 12, format));
  return [axis, names.map((name) => {
    const svg = strip(band, name);
    svg.append(graphic('text', { class: 'strong', x: left - 12, y: (band - 2) / 2 + 4, 'text-anchor': 'end' }, name.length > left / 7.2 ? `${name.slice(0, left / 7.2 - 1)}…` : name));
    list.forEach((item, place) => {
      const y = 5 + place * (tall + 1.5);
      const number = value(item, name);
      if (!Number.isFinite(number)) return;
      const bar = graphic('rect', { x: left, y, width: Math.max(1, sx(number) - left), height: tall, rx: 2, fill: ownColour(item, list), 'fill-opacity': 0.85 });
      const queries = part(item, name).Queries;
      svg.append(tipped(bar, `${name}: ${item.name}`, [`${metric}: ${measured(metric, number)}${half(item, name) ? ` ± ${format(half(item, name))}` : ''}`, `${short(queries)} queries`]));
      if (half(item, name)) svg.append(graphic('line', { stroke: 'var(--ink)', 'stroke-opacity': 0.55, x1: sx(Math.max(0, number - half(item, name))), x2: sx(number + half(item, name)), y1: y + tall / 2, y2: y + tall / 2 }));
    });
    return svg;
  })];
}
