// The figures: speedup against tau, accuracy against cost, distributions of times, kinds of queries.

const visit = (item) => () => { go({ case: item.id, query: '' }); byId('queries').scrollIntoView(); };

function speed() {
  const about = 'Each point is a test case with its 95 % intervals. On the dotted diagonal a verification step would cost no more than a plain one: the distance to it is what drafting and verifying cost.';
  const list = shown().filter((item) => Number.isFinite(item.figures.Speedup) && Number.isFinite(item.figures['Mean Accepted Tokens']));
  if (!list.length) {
    replace('speed', caption('speed', 'Speedup against tau', about), nothing('No test case here has both: a speedup needs the back end autoregressive as its baseline in the same job, and tau one that tells its steps.'));
    return;
  }
  const x = extent(list.flatMap((item) => spread(item, 'Mean Accepted Tokens')), { from: 1 });
  const y = extent(list.flatMap((item) => spread(item, 'Speedup')), { from: 1 });
  const chart = plot({ title: 'Speedup against mean accepted tokens', height: 520,
    x: { domain: x, label: 'mean accepted tokens per verification step (tau)' }, y: { domain: y, label: 'speedup', format: (value) => `${short(value)}×` } });
  const { area, sx, sy } = chart;
  const end = Math.min(x[1], y[1]);
  area.append(graphic('line', { class: 'refline', x1: sx(1), y1: sy(1), x2: sx(end), y2: sy(end) }),
    graphic('line', { class: 'refline', x1: sx(x[0]), y1: sy(1), x2: sx(x[1]), y2: sy(1) }));
  const label = Math.max(1, y[1]) === y[1] ? graphic('text', { x: sx(end) - 6, y: sy(end) + 16, 'text-anchor': 'end' }, 'speedup = tau') : null;
  if (label) area.append(label);
  for (const item of list) {
    interval(area, sx, sy, item.figures['Mean Accepted Tokens'], item.figures.Speedup, item.figures['Mean Accepted Tokens CI95'], item.figures['Speedup CI95'], colourOf(item));
  }
  for (const item of list) {
    const mark = marker(shapeOf(item.router), sx(item.figures['Mean Accepted Tokens']), sy(item.figures.Speedup), 6, colourOf(item));
    area.append(tipped(mark, item.name, ['Speedup', 'Mean Accepted Tokens', 'Acceptance Rate', 'Throughput', 'Lossless'].map((name) => `${name}: ${withInterval(item, name)}`), visit(item)));
  }
  replace('speed', caption('speed', 'Speedup against tau', about), element('figure', {}, chart.svg));
}

function spread(item, name) {
  const half = item.figures[`${name} CI95`] || 0;
  return [item.figures[name] - half, item.figures[name] + half];
}

function routing() {
  const about = 'The dotted line is what random routing gives between the edge alone and the cloud alone; the shaded edge above it is the bound that no router can pass. Thin lines are the routers at every threshold, worked out from the scores they gave.';
  const visible = shown();
  const panels = data.routing.filter((panel) => panel.cases.some((index) => visible.includes(data.cases[index])));
  const prices = panels.every((panel) => !panel.ends || panel.ends[1][1] !== null) && visible.some((item) => Number.isFinite(item.figures['Cloud Cost']));
  const byCost = prices && state.x !== 'share';
  const choice = prices && element('div', { class: 'tools' }, [['', 'Cloud cost'], ['share', 'Share of queries']].map(([value, text]) =>
    element('button', { 'aria-pressed': String((state.x === 'share') === (value === 'share')), onclick: () => go({ x: value }) }, text)));
  const charts = panels.map((panel) => routingChart(panel, visible, byCost)).filter(Boolean);
  replace('routing', caption('routing', 'Accuracy against cloud cost', about), choice,
    charts.length ? charts : nothing('No test case here has an accuracy and an edge and a cloud model.'));
}

function routingChart(panel, visible, byCost) {
  const place = (item) => (byCost ? item.figures['Cloud Cost'] : 100 - item.figures['Edge Ratio']);
  const list = panel.cases.map((index) => data.cases[index]).filter((item) => visible.includes(item) && Number.isFinite(item.figures.Accuracy) && Number.isFinite(place(item)));
  if (!list.length) return null;
  const at = ([share, cost, accuracy]) => [byCost ? cost : share, accuracy];
  const ends = (panel.ends || []).map(at);
  const bound = (panel.bound || []).map(at);
  const x = extent([...list.map(place), ...bound.map((point) => point[0])], { from: 0, margin: 0.04 });
  const y = extent([...list.flatMap((item) => spread(item, 'Accuracy')), ...bound.map((point) => point[1])]);
  const chart = plot({ title: 'Accuracy against cloud cost', height: 400, y: { domain: y, label: 'accuracy' },
    x: { domain: x, label: byCost ? 'cloud cost of 1,000 queries' : 'queries sent to the cloud (%)' } });
  const { area, sx, sy } = chart;
  if (ends.length) {
    area.append(graphic('path', { class: 'bound', d: `${path([...bound, ...[...ends].reverse()], sx, sy)}Z` }),
      graphic('path', { class: 'refline', d: path(ends, sx, sy) }));
  }
  for (const curve of panel.curves || []) {
    if (!curve.cases.some((index) => visible.includes(data.cases[index]))) continue;
    const points = curve.points.map(at);
    const colour = routerColour(curve.router);
    area.append(graphic('path', { class: 'line', stroke: colour, d: path(points, sx, sy) }));
    area.append(tipped(graphic('path', { class: 'hit', d: path(points, sx, sy) }), curve.router,
      [`share of the cloud’s advantage kept (APGR): ${short(curve.apgr, 3)}`, curve.auroc === null ? '' : `AUROC of its scores: ${short(curve.auroc, 3)}`]));
  }
  const stacks = new Map();
  for (const item of list) {
    const key = [item.router, short(place(item), 3), short(item.figures.Accuracy, 4)].join('|');
    stacks.set(key, [...(stacks.get(key) || []), item]);
  }
  for (const [item] of stacks.values()) interval(area, sx, sy, place(item), item.figures.Accuracy, byCost ? item.figures['Cloud Cost CI95'] : 0, item.figures['Accuracy CI95'], routerColour(item.router));
  for (const stack of stacks.values()) {
    const item = stack[0];
    const mark = marker(shapeOf(item.router), sx(place(item)), sy(item.figures.Accuracy), 6.5, routerColour(item.router));
    area.append(tipped(mark, item.router, [`Accuracy: ${withInterval(item, 'Accuracy')}`, `Cloud Cost: ${withInterval(item, 'Cloud Cost')}`, `Edge Ratio: ${withInterval(item, 'Edge Ratio')}`, stack.map((one) => backends(one)).join(', ')], visit(item)));
  }
  for (const router of new Set(list.map((item) => item.router))) {
    const item = list.find((one) => one.router === router);
    const right = sx(place(item)) > chart.width - 150;
    area.append(graphic('text', { class: 'strong', 'aria-hidden': 'true', x: sx(place(item)) + (right ? -11 : 11), y: sy(item.figures.Accuracy) + (right ? 20 : -9), 'text-anchor': right ? 'end' : 'start' }, router));
  }
  const of = panel.queries ? `Curves over the ${short(panel.queries)} queries that both models have answered.` : 'No curves: too few queries were answered by both models.';
  return element('figure', {}, chart.svg, element('p', { class: 'quiet' }, of), quality(panel));
}

function quality(panel) {
  const columns = [['apgr', 'APGR', 'Share of the cloud’s advantage that is kept, mean over all shares of queries in the cloud; random: 0.5'],
    ['cpt50', 'CPT 50 %', 'Share of the queries (%) that the cloud needs for half of its advantage; random: 50'],
    ['cpt80', 'CPT 80 %', 'Share of the queries (%) that the cloud needs for 80 % of its advantage; random: 80'],
    ['auroc', 'AUROC', 'Probability that a query which the cloud answers better has the higher score; random: 0.5']];
  const curves = (panel.curves || []).filter((curve) => columns.some(([name]) => curve[name] !== null));
  if (!curves.length) return null;
  const cell = (curve, name) => `${short(curve[name], 3)}${name in curve.intervals ? ` [${curve.intervals[name].map((end) => short(end, 3)).join(', ')}]` : ''}`;
  return element('table', { class: 'plain' },
    element('thead', {}, element('tr', {}, element('th', { scope: 'col' }, 'Router'), columns.map(([, title, about]) => element('th', { scope: 'col', title: about }, title)))),
    element('tbody', {}, curves.map((curve) => element('tr', {}, [curve.router, ...columns.map(([name]) => cell(curve, name))].map((text) => element('td', {}, text))))));
}

function latency() {
  const about = 'Share of the values up to a time; dots mark the 50th, 90th and 99th percentile. Further left is faster; the axis is logarithmic. A chunk gap is the time between two pieces of output that reach the user.';
  const names = ['Time to First Token', 'Chunk Gap', 'Latency'];
  const list = shown();
  const charts = names.map((name) => distribution(name, list.filter((item) => item.distributions[name]))).filter(Boolean);
  replace('latency', caption('latency', 'Distributions of times', about),
    charts.length && element('div', { class: 'key' }, [...new Set(list.map((item) => item.router))].map((name) => element('span', {}, dash(name), name))),
    charts.length ? element('div', { class: 'multiples' }, charts) : nothing('No test case here has timings: without answers, or with answers replayed from different machines, they are undefined.'));
}

function distribution(name, list) {
  if (!list.length) return null;
  const values = list.flatMap((item) => item.distributions[name].values).filter((value) => value > 0);
  const domain = [Math.min(...values) * 0.9, Math.max(...values) * 1.1];
  const chart = plot({ title: name, width: 400, height: 270, left: 44, bottom: 40, x: { domain, log: true, label: name, format: (value) => seconds(value, 2) },
    y: { domain: [0, 100], ticks: [0, 25, 50, 75, 100], format: (value) => `${value}%` } });
  const { area, sx, sy } = chart;
  const lines = graphic('g');
  const marks = graphic('g');
  for (const item of list) {
    const { values: own, count } = item.distributions[name];
    const points = own.map((value, i) => [Math.max(value, domain[0]), data.quantiles[i]]).sort((a, b) => a[1] - b[1]);
    const at = (percent) => own[data.quantiles.indexOf(percent)];
    const line = graphic('path', { class: 'line', stroke: colourOf(item), 'stroke-dasharray': dashOf(item.router), d: path(points, sx, sy) });
    const dots = [50, 90, 99].map((percent) => graphic('circle', { cx: sx(Math.max(at(percent), domain[0])), cy: sy(percent), r: 2.6, fill: colourOf(item) }));
    const group = graphic('g', {}, line, dots);
    const hit = tipped(graphic('path', { class: 'hit', d: path(points, sx, sy) }), item.name, [...[50, 90, 99].map((percent) => `p${percent}: ${seconds(at(percent))}`), `${short(count)} values`], visit(item));
    const dim = (on) => { for (const other of lines.children) other.classList.toggle('dim', on && other !== group); };
    hit.addEventListener('pointerenter', () => dim(true));
    hit.addEventListener('pointerleave', () => dim(false));
    hit.addEventListener('focus', () => dim(true));
    hit.addEventListener('blur', () => dim(false));
    lines.append(group);
    marks.append(hit);
  }
  area.append(lines, marks);
  return element('figure', {}, element('figcaption', {}, name), chart.svg);
}

function dash(router) {
  return graphic('svg', { width: 30, height: 8, viewBox: '0 0 30 8', style: 'width:30px', 'aria-hidden': 'true' },
    graphic('line', { x1: 0, x2: 30, y1: 4, y2: 4, stroke: 'var(--soft)', 'stroke-width': 1.9, 'stroke-dasharray': dashOf(router) }));
}

const dashOf = (router) => DASHES[routers.indexOf(router) % DASHES.length];
const DASHES = ['none', '7 3', '2 3', '9 3 2 3', '4 2', '1 2'];
const MOST_BARS = 8;

function tasks() {
  const about = 'Figures by kind of query, with 95 % intervals: the ticked test cases of one router, in the leaderboard’s order.';
  const ticked = sorted(matching(shown())).filter((item) => Object.keys(item.groups).length);
  const count = (router) => ticked.filter((item) => item.router === router).length;
  const own = [...new Set(ticked.map((item) => item.router))];
  const router = own.includes(state.router) ? state.router : [...own].sort((a, b) => count(b) - count(a))[0];
  const listed = ticked.filter((item) => item.router === router);
  const list = listed.slice(0, MOST_BARS);
  const names = [...new Set(list.flatMap((item) => Object.keys(item.groups)))].sort();
  const metrics = ['Speedup', 'Accuracy', 'Mean Accepted Tokens', 'Throughput', 'Latency', 'Edge Ratio'].filter((metric) => list.some((item) => names.some((name) => Number.isFinite((item.groups[name] || {})[metric]))));
  if (!metrics.length) {
    replace('tasks', caption('tasks', 'Kinds of queries', about), nothing('The queries here are of one kind, or have no results.'));
    return;
  }
  const metric = metrics.includes(state.metric) ? state.metric : metrics[0];
  const choice = element('div', { class: 'tools' }, metrics.map((name) => element('button', { 'aria-pressed': String(name === metric), onclick: () => go({ metric: name }) }, name)),
    own.length > 1 && element('select', { 'aria-label': 'Router', onchange: (event) => go({ router: event.target.value }) }, own.map((name) => element('option', { value: name, selected: name === router }, name))));
  const key = element('div', { class: 'key' }, list.map((item) => element('span', {}, swatch('square', barColour(item, list)), ` ${item.name}`)),
    listed.length > list.length && element('span', {}, `(${listed.length - list.length} more not drawn)`));
  replace('tasks', caption('tasks', 'Kinds of queries', about), choice, key, element('figure', {}, bars(list, names, metric)));
}

// Where test cases of one router and back end differ in something else, each takes a colour of its own.
const barColour = (item, list) => (new Set(list.map(colourOf)).size < list.length ? `var(--c${list.indexOf(item) % 10})` : colourOf(item));

function bars(list, names, metric) {
  const tall = 9;
  const band = list.length * (tall + 1.5) + 12;
  const room = byId('tasks').clientWidth - 44;
  const [width, left, right, top] = [Math.max(400, Math.min(1290, room)), room < 700 ? 110 : 190, 24, 22];
  const bottom = top + names.length * band;
  const value = (item, name) => (item.groups[name] || {})[metric];
  const half = (item, name) => (item.groups[name] || {})[`${metric} CI95`] || 0;
  const high = Math.max(...list.flatMap((item) => names.map((name) => (value(item, name) || 0) + half(item, name)))) || 1;
  const sx = (number) => left + (number / high) * (width - left - right);
  const format = columns.get(metric) && columns.get(metric).unit === 's' ? (number) => seconds(number, 2) : (number) => short(number, 3);
  const svg = graphic('svg', { viewBox: `0 0 ${width} ${bottom + 6}`, role: 'group', 'aria-label': `${metric} by kind of query` });
  for (const tick of ticks(0, high, width < 700 ? 3 : 6)) {
    svg.append(graphic('line', { class: 'grid', x1: sx(tick), x2: sx(tick), y1: top - 4, y2: bottom }), graphic('text', { x: sx(tick), y: 12, 'text-anchor': 'middle', 'aria-hidden': 'true' }, format(tick)));
  }
  if (metric === 'Speedup') svg.append(graphic('line', { class: 'refline', x1: sx(1), x2: sx(1), y1: top - 4, y2: bottom }));
  names.forEach((name, row) => {
    const start = top + row * band + 5;
    svg.append(graphic('text', { class: 'strong', x: left - 12, y: start + (band - 12) / 2 + 4, 'text-anchor': 'end' }, name.length > left / 7.2 ? `${name.slice(0, left / 7.2 - 1)}…` : name));
    list.forEach((item, place) => {
      const y = start + place * (tall + 1.5);
      const number = value(item, name);
      if (!Number.isFinite(number)) return;
      const bar = graphic('rect', { x: left, y, width: Math.max(1, sx(number) - left), height: tall, rx: 2, fill: barColour(item, list), 'fill-opacity': 0.85 });
      const queries = item.groups[name].Queries;
      svg.append(tipped(bar, `${name}: ${item.name}`, [`${metric}: ${measured(metric, number)}${half(item, name) ? ` ± ${format(half(item, name))}` : ''}`, `${short(queries)} queries`]));
      if (half(item, name)) svg.append(graphic('line', { stroke: 'var(--ink)', 'stroke-opacity': 0.55, x1: sx(Math.max(0, number - half(item, name))), x2: sx(number + half(item, name)), y1: y + tall / 2, y2: y + tall / 2 }));
    });
  });
  return svg;
}
