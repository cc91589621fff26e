// Distributions of times: a few test cases by default, the others on demand.

const TIMES = ['Time to First Token', 'Chunk Gap', 'Latency'];
const FEWEST_CURVES = 4;
const MAX_CURVES = 8;

// The first test case of each router, then further ones in turns up to the minimum.
function few(list) {
  const turn = (item) => list.filter((other) => other.router === item.router).indexOf(item);
  const count = Math.min(MAX_CURVES, Math.max(FEWEST_CURVES, new Set(list.map((item) => item.router)).size));
  const first = new Set([...list].sort((a, b) => turn(a) - turn(b)).slice(0, count));
  return list.filter((item) => first.has(item));
}

function timed(list) {
  if (state.times === 'all') return list;
  const wanted = new Set(state.times.split(',').filter(Boolean));
  const own = list.filter((item) => wanted.has(item.id));
  return own.length ? own : few(list);
}

function latency() {
  const about = 'Cumulative share of the values, with marks at the 50th, 90th and 99th percentile; the axis is logarithmic. A chunk gap is the time between two chunks of output.';
  const all = shown().filter((item) => TIMES.some((name) => item.distributions[name]));
  if (!all.length) {
    replace('latency', caption('latency', 'Distributions of times', about), nothing('No test case here has timings: they are undefined without answers, and if answers were replayed from different machines.'));
    return;
  }
  const list = timed(all);
  const pick = (items) => go({ times: items.map((item) => item.id).join(',') });
  const choose = (item) => [item.name, list.includes(item), (on) => pick(all.filter((other) => (other === item ? on : list.includes(other))))];
  const names = TIMES.filter((name) => list.some((item) => item.distributions[name]));
  const { style, width } = columnsFor('latency', names.length);
  replace('latency', caption('latency', 'Distributions of times', about),
    all.length > 1 && element('div', { class: 'tools' },
      all.length > list.length && element('button', { id: 'all-times', onclick: () => go({ times: 'all' }) }, `All ${all.length}`),
      state.times && element('button', { id: 'few-times', onclick: () => go({ times: '' }) }, 'A few'),
      menu('times-menu', 'Choose', all.map(choose)), element('span', { class: 'quiet' }, `${list.length} of ${all.length} test cases are drawn.`)),
    legendOf(list.map((item) => [shapeOf(item.router), ownColour(item, list), item.name])),
    element('div', { class: 'multiples', style }, names.map((name) => distribution(name, list, width))));
}

// Space between two charts in a row, and minimum width of a chart, in pixels.
const GAP = 28;
const NARROWEST = 300;

// Grid of charts in a section: its style, and the width of a chart.
function columnsFor(id, count) {
  const across = Math.max(1, printing ? count : Math.min(count, Math.floor((room(id) + GAP) / (NARROWEST + GAP))));
  return { style: `grid-template-columns: repeat(${across}, minmax(0, 1fr))`, width: (room(id) - (across - 1) * GAP) / across };
}

function distribution(name, every, width) {
  const list = every.filter((item) => item.distributions[name]);
  const values = list.flatMap((item) => item.distributions[name].values).filter((value) => value > 0);
  const domain = [Math.min(...values) * 0.9, Math.max(...values) * 1.1];
  const chart = plot({ title: name, width, height: printing ? 190 : 270, left: 44, bottom: 40, x: { domain, log: true, label: name, format: (value) => seconds(value, 2) },
    y: { domain: [0, 100], ticks: [0, 25, 50, 75, 100], format: (value) => `${value}%` } });
  const { area, sx, sy } = chart;
  const lines = graphic('g');
  const marks = graphic('g');
  for (const item of list) {
    const colour = ownColour(item, every);
    const { values: own, count } = item.distributions[name];
    const points = own.map((value, i) => [Math.max(value, domain[0]), data.quantiles[i]]).sort((a, b) => a[1] - b[1]);
    const at = (percent) => own[data.quantiles.indexOf(percent)];
    const line = graphic('path', { class: 'line', stroke: colour, d: path(points, sx, sy) });
    const dots = [50, 90, 99].map((percent) => marker(shapeOf(item.router), sx(Math.max(at(percent), domain[0])), sy(percent), 3.6, colour));
    const group = graphic('g', { class: 'curve' }, line, dots);
    const hit = tipped(graphic('path', { class: 'hit', d: path(points, sx, sy) }), item.name, [...[50, 90, 99].map((percent) => `p${percent}: ${seconds(at(percent))}`), `${short(count)} values`], visit(item));
    const dim = (on) => { for (const other of lines.children) other.classList.toggle('dim', on && other !== group); };
    for (const [event, on] of [['pointerenter', true], ['pointerleave', false], ['focus', true], ['blur', false]]) hit.addEventListener(event, () => dim(on));
    lines.append(group);
    marks.append(hit);
  }
  area.append(lines, marks);
  return element('figure', {}, element('figcaption', {}, name), chart.svg);
}
