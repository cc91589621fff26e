// Charts of test cases: speedup against tau, accuracy against cost.

const visit = (item) => () => { go({ case: item.id, query: '' }); byId('queries').scrollIntoView(); };

function speed() {
  const about = 'Each point is a test case answered by one model, with 95 % intervals. On the dotted diagonal speedup equals tau; the distance to it is the cost of drafting, verifying and prefill.';
  const both = shown().filter((item) => Number.isFinite(item.figures.Speedup) && Number.isFinite(item.figures['Mean Accepted Tokens']));
  const list = both.filter((item) => item.alone);
  const left = both.filter((item) => !item.alone);
  const count = (cases, why) => cases.length > 0 && `${cases.length} test case${cases.length > 1 ? 's' : ''} ${why}`;
  const reasons = [count(left.filter((item) => item.answered), 'in which two models worked: over both, speedup is weighted by time and tau by steps'),
    count(left.filter((item) => !item.answered), 'without stored answers, so that the model is unknown')].filter(Boolean);
  const mixed = reasons.length > 0 && element('p', { class: 'about' }, `Not drawn: ${reasons.join('; ')}.`);
  if (!list.length) {
    replace('speed', caption('speed', 'Speedup against tau', about), nothing('No test case here has both for one model: speedup needs the back end autoregressive as baseline in the same job, tau a back end that reports its steps.'), mixed);
    return;
  }
  const x = extent(list.flatMap((item) => spread(item, 'Mean Accepted Tokens')), { from: 1 });
  const y = extent(list.flatMap((item) => spread(item, 'Speedup')), { from: 1 });
  const chart = plot({ title: 'Speedup against mean accepted tokens', ...size('speed', 0.95),
    x: { domain: x, label: 'mean accepted tokens per verification step (tau)' }, y: { domain: y, label: 'speedup', format: (value) => `${short(value)}×` } });
  const { area, sx, sy } = chart;
  const end = Math.min(x[1], y[1]);
  area.append(graphic('line', { class: 'refline', id: 'diagonal', x1: sx(1), y1: sy(1), x2: sx(end), y2: sy(end) }),
    graphic('line', { class: 'refline', x1: sx(x[0]), y1: sy(1), x2: sx(x[1]), y2: sy(1) }));
  for (const item of list) {
    interval(area, sx, sy, item.figures['Mean Accepted Tokens'], item.figures.Speedup, item.figures['Mean Accepted Tokens CI95'], item.figures['Speedup CI95'], colourOf(item));
  }
  const place = (item) => ({ x: sx(item.figures['Mean Accepted Tokens']), y: sy(item.figures.Speedup) });
  for (const item of list) {
    const mark = marker(shapeOf(item.router), place(item).x, place(item).y, 6, colourOf(item));
    area.append(tipped(mark, item.name, ['Speedup', 'Mean Accepted Tokens', 'Acceptance Rate', 'Throughput', 'Lossless'].map((name) => `${name}: ${withInterval(item, name)}`), visit(item)));
  }
  placeNames(chart, [{ x: sx(end), y: sy(end), text: 'speedup = tau' }], list.map(place));
  replace('speed', caption('speed', 'Speedup against tau', about), element('figure', {}, chart.svg), mixed);
}

// Width and height of a chart in a section; on paper low enough to fill pages.
const TALLEST = 520;
const TALLEST_ON_PAPER = 240;
const size = (id, ratio) => ({ width: room(id), height: Math.min(printing ? TALLEST_ON_PAPER : TALLEST, Math.max(280, room(id) * ratio)) });

function spread(item, name) {
  const half = item.figures[`${name} CI95`] || 0;
  return [item.figures[name] - half, item.figures[name] + half];
}

function routing() {
  const about = 'The dotted line is random routing between the edge alone and the cloud alone; the upper edge of the shaded area is the oracle, which knows both answers and which no router can surpass. Thin lines are the routers at every threshold, computed from their scores.';
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
  const chart = plot({ title: 'Accuracy against cloud cost', ...size('routing', 0.72), y: { domain: y, label: 'accuracy' },
    x: { domain: x, label: byCost ? 'cloud cost of 1,000 queries' : 'queries sent to the cloud (%)' } });
  const { area, sx, sy } = chart;
  if (ends.length) {
    area.append(graphic('path', { class: 'bound', d: `${path([...bound, ...[...ends].reverse()], sx, sy)}Z` }),
      graphic('path', { class: 'refline', d: path(ends, sx, sy) }));
  }
  const curves = drawn(panel, visible);
  const strokes = curves.map((curve) => path(curve.points.map(at), sx, sy));
  for (const [place, curve] of curves.entries()) {
    const d = strokes[place];
    // Identical curves are drawn as alternating dashes.
    const same = strokes.filter((other) => other === d).length;
    const turn = strokes.slice(0, place).filter((other) => other === d).length;
    area.append(graphic('path', { class: 'line', stroke: routerColour(curve.router), d, ...(same > 1 && { 'stroke-dasharray': `${DASH} ${DASH * (same - 1)}`, 'stroke-dashoffset': -DASH * turn }) }));
    area.append(tipped(graphic('path', { class: 'hit', d }), curve.name,
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
  const spot = (item) => ({ x: sx(place(item)), y: sy(item.figures.Accuracy) });
  placeNames(chart, [...new Set(list.map((item) => item.router))].map((router) => ({ ...spot(list.find((item) => item.router === router)), text: router })), list.map(spot));
  const of = panel.queries ? `Curves over the ${short(panel.queries)} queries answered by both models.` : 'No curves: both models answered too few queries.';
  return element('figure', {}, chart.svg, element('p', { class: 'quiet' }, of), quality(curves), reasons(panel, visible));
}

// Length of a dash of identical curves.
const DASH = 9;

// The curves of visible test cases, named by the router, or by the test case if the router has several.
function drawn(panel, visible) {
  const own = (curve) => curve.cases.map((index) => data.cases[index]).filter((item) => visible.includes(item));
  const curves = (panel.curves || []).filter((curve) => own(curve).length);
  const alike = (curve) => curves.filter((other) => other.router === curve.router).length;
  return curves.map((curve) => ({ ...curve, name: alike(curve) > 1 ? own(curve)[0].name : curve.router }));
}

function reasons(panel, visible) {
  const without = (panel.without || []).filter((one) => visible.includes(data.cases[one.case]));
  const groups = [...new Set(without.map((one) => one.reason))].map((reason) => `${[...new Set(without.filter((one) => one.reason === reason).map((one) => one.router))].join(', ')} (${reason})`);
  return groups.length > 0 && element('p', { class: 'quiet' }, `No curve: ${groups.join('; ')}.`);
}

const QUALITY = [['apgr', 'APGR', 'Share of the cloud’s advantage that is kept, mean over all shares of queries in the cloud; random: 0.5'],
  ['cpt50', 'CPT 50 %', 'Share of the queries (%) that the cloud needs for half of its advantage; random: 50'],
  ['cpt80', 'CPT 80 %', 'Share of the queries (%) that the cloud needs for 80 % of its advantage; random: 80'],
  ['auroc', 'AUROC', 'Probability that a query which the cloud answers better has the higher score; random: 0.5'],
  ['pareto_dist', 'ParetoDist', 'Mean distance of the curve from the best that any of these routers attains, both axes from 0 to 1']];

function quality(curves) {
  const known = curves.filter((curve) => QUALITY.some(([name]) => curve[name] !== null));
  if (!known.length) return null;
  const cell = (curve, name) => [short(curve[name], 3), name in curve.intervals && element('small', {}, `${curve.intervals[name].map((end) => short(end, 3)).join(' to ')}`)];
  return scrolling('Quality of the routers', element('table', { class: 'plain quality' },
    element('thead', {}, element('tr', {}, element('th', { scope: 'col' }, 'Router'), QUALITY.map(([, title, about]) => element('th', { scope: 'col' }, term(title, about))))),
    element('tbody', {}, known.map((curve) => element('tr', {}, element('td', {}, swatch(shapeOf(curve.router), routerColour(curve.router)), ' ', curve.name), QUALITY.map(([name]) => element('td', {}, cell(curve, name))))))));
}
