// Drafting methods compared: benefit, cost, and acceptance by position.

const METHODS = ['Mean Accepted Tokens', 'Acceptance Rate', 'Drafting Share', 'Throughput', 'Speedup'];
const STEP = 'Time of a verification step, including drafting: internal token latency times tau. Below it, relative to the autoregressive test case with the same router and model';

function drafts() {
  const about = 'Test cases answered by one model alone, with 95 % intervals. A drafting method pays if tau, the tokens per verification step, grows by a larger factor than the time of a step.';
  const list = sorted(shown()).filter((item) => item.alone && Number.isFinite(item.figures['Mean Accepted Tokens']));
  const drafting = list.filter((item) => item.positions);
  reveal('drafts', drafting.length);
  replace('drafts', drafting.length > 0 && [caption('drafts', 'Drafting methods', about), methods(list), acceptance(drafting, list)]);
}

function methods(list) {
  const names = METHODS.filter((name) => list.some((item) => Number.isFinite(item.figures[name])));
  const head = [...names.map((name) => [name, columns.get(name).about]), ['Step Time', STEP]];
  const cell = (item, name) => element('td', {}, Number.isFinite(item.figures[name]) && measured(name, item.figures[name]),
    halfOf(item, name) > 0 && element('small', {}, `± ${short(halfOf(item, name), 2)}`));
  return scrolling('Drafting methods', element('table', { class: 'plain quality' },
    element('thead', {}, element('tr', {}, element('th', { scope: 'col' }, 'Test case'), head.map(([name, meaning]) => element('th', { scope: 'col' }, term(name, meaning))))),
    element('tbody', {}, list.map((item) => element('tr', {}, element('th', { scope: 'row' }, swatch(shapeOf(item.router), ownColour(item, list)), ' ', item.name),
      names.map((name) => cell(item, name)), stepTime(item))))));
}

function stepTime(item) {
  const { 'Internal Token Latency': latency, 'Mean Accepted Tokens': tau } = item.figures;
  const plain = plainLatency(item);
  return element('td', {}, latency > 0 && seconds(latency * tau), latency > 0 && plain > 0 && element('small', {}, `${short((latency * tau) / plain, 3)}×`));
}

// A speedup implies a baseline on this hardware. With several test cases without drafts, there is none to compare with.
function plainLatency(item) {
  const setting = (one) => JSON.stringify([one.router, one.alone, one.alone && one[one.alone]?.model, Object.keys(one.targets[one.alone] || {})]);
  const plain = cases().filter((one) => one.alone && backends(one) === 'autoregressive' && setting(one) === setting(item));
  return Number.isFinite(item.figures.Speedup) && plain.length === 1 ? plain[0].figures['Internal Token Latency'] : null;
}

function acceptance(drafting, list) {
  const title = 'Acceptance by position';
  const most = Math.max(...drafting.map((item) => item.positions.rates.length));
  const chart = plot({ title, width: room('drafts'), height: printing ? 200 : 270, y: { domain: [0, 100], ticks: [0, 25, 50, 75, 100], format: (value) => `${value}%`, label: 'of all drafts' },
    x: { domain: [0.7, most + 0.3], ticks: Array.from({ length: most }, (_, place) => place + 1), label: 'position in the draft' } });
  const { area, sx, sy } = chart;
  for (const item of drafting) {
    const { drafts: count, rates } = item.positions;
    const colour = ownColour(item, list);
    area.append(graphic('path', { class: 'line', stroke: colour, d: path(rates.map((rate, place) => [place + 1, 100 * rate]), sx, sy) }));
    rates.forEach((rate, place) => {
      const before = place && rates[place - 1];
      const lines = [`position ${place + 1}: accepted in ${short(100 * rate, 3)} % of ${short(count)} drafts`, before > 0 && `${short((100 * rate) / before, 3)} % of those accepted up to position ${place}`];
      area.append(tipped(marker(shapeOf(item.router), sx(place + 1), sy(100 * rate), 4.2, colour), item.name, lines, visit(item)));
    });
  }
  return element('figure', {}, element('figcaption', {}, title), chart.svg);
}
