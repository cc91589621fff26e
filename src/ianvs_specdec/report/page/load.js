// Sweeps of specdec load: each policy against the rate of requests.

const PANELS = [
  { title: 'Throughput', label: 'token/s', solid: 'throughput' },
  { title: 'Latency', label: 'seconds: p50 solid, p99 dotted', solid: 'p50', dotted: 'p99' },
  { title: 'Goodput', label: 'requests/s that meet the objectives', solid: 'goodput' },
];

function load() {
  const about = 'Each line is a speculation policy, each point a round at one request rate; all policies of a sweep get the same requests. Bands are 95 % intervals over requests.';
  const list = data.load.filter((sweep) => sweep.job === null || sweep.job === state.job);
  reveal('load', list.length);
  replace('load', list.length > 0 && [caption('load', 'Policies under load', about), list.map(sweepFigure)]);
}

function sweepFigure(sweep) {
  const policies = [...new Set(sweep.points.map((point) => point.policy))];
  const panels = PANELS.filter(({ solid }) => sweep.points.some((point) => point[solid]));
  const { style, width } = columnsFor('load', panels.length);
  const objectives = Object.entries(sweep.slo).map(([name, limit]) => `${name} ${seconds(limit)}`).join(', ');
  return element('div', { class: 'sweep' },
    element('p', { class: 'caption' }, [sweep.name, `arrivals: ${sweep.arrivals}`, objectives && `objectives: ${objectives}`].filter(Boolean).join(' · ')),
    legendOf(policies.map((policy, place) => [outline(place), hue(place), policy])),
    element('div', { class: 'multiples', style }, panels.map((panel) => sweepPanel(panel, sweep, policies, width))));
}

function sweepPanel({ title, label, solid, dotted }, sweep, policies, width) {
  const values = sweep.points.flatMap((point) => [...(point[solid] || []), ...((dotted && point[dotted]) || []).slice(0, 1)]);
  const chart = plot({ title, width, height: printing ? 190 : 270, y: { domain: extent(values, { from: 0 }), label },
    x: { domain: extent(sweep.points.map((point) => point.rate), { from: 0, margin: 0.04 }), label: 'requests a second' } });
  const { area, sx, sy } = chart;
  for (const [place, policy] of policies.entries()) {
    const own = sweep.points.filter((point) => point.policy === policy).sort((a, b) => a.rate - b.rate);
    const points = (name, part) => own.filter((point) => point[name]).map((point) => [point.rate, point[name][part]]);
    const band = [...points(solid, 1), ...points(solid, 2).reverse()];
    area.append(graphic('path', { class: 'band', fill: hue(place), d: `${path(band, sx, sy)}Z` }), graphic('path', { class: 'line', stroke: hue(place), d: path(points(solid, 0), sx, sy) }));
    if (dotted) area.append(graphic('path', { class: 'line', stroke: hue(place), 'stroke-dasharray': '2 4', d: path(points(dotted, 0), sx, sy) }));
  }
  for (const point of sweep.points.filter((one) => one[solid])) {
    const place = policies.indexOf(point.policy);
    const [value, low, high] = point[solid];
    const lines = [`${short(point.rate)} requests/s`, `${title}: ${short(value)} (${short(low)} to ${short(high)})`, dotted && point[dotted] && `${dotted}: ${short(point[dotted][0])}`];
    area.append(tipped(marker(outline(place), sx(point.rate), sy(value), 4.2, hue(place)), point.policy, lines));
  }
  return element('figure', {}, element('figcaption', {}, title), chart.svg);
}
