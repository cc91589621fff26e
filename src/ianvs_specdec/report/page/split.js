// Split decoding: time per token over the round trip.

function split() {
  const about = 'Each line is a drafter on the edge, or streaming from the cloud, over paths with different delays. Splitting pays up to the crossing with the autoregressive stream.';
  const list = data.split.filter((grid) => grid.job === state.job);
  reveal('split', list.length);
  replace('split', list.length > 0 && [caption('split', 'Split decoding', about), overBytes(), list.map(splitFigure)]);
}

// Latency over bytes per token, one mark for each strategy and link.
function overBytes() {
  const bytes = (item) => item.figures['Bandwidth Up'] + item.figures['Bandwidth Down'];
  const link = (item) => item.configuration['cloudmodel.link'];
  const strategy = (item) => [item.algorithm, item.configuration['cloudmodel.edge'], item.configuration['cloudmodel.beside']].filter(Boolean).join(' · ');
  const list = shown().filter((item) => link(item) && Number.isFinite(item.figures.Latency) && bytes(item) > 0);
  const [strategies, links] = [[...new Set(list.map(strategy))], [...new Set(list.map(link))]];
  if (strategies.length < 2) return null;
  const chart = plot({ title: 'Latency over bytes', width: room('split'), height: printing ? 220 : 340,
    x: { domain: extent(list.map((item) => Math.log10(bytes(item)))).map((power) => 10 ** power), log: true, label: 'bytes per token, up and down' },
    y: { domain: extent(list.flatMap((item) => spread(item, 'Latency')), { from: 0 }), label: 'latency, s' } });
  const { area, sx, sy } = chart;
  for (const item of list) {
    const colour = hue(strategies.indexOf(strategy(item)));
    interval(area, sx, sy, bytes(item), item.figures.Latency, 0, item.figures['Latency CI95'], colour);
    const mark = marker(outline(links.indexOf(link(item))), sx(bytes(item)), sy(item.figures.Latency), 5, colour);
    area.append(tipped(mark, `${strategy(item)}, ${link(item)}`, ['Latency', 'Bandwidth Up', 'Bandwidth Down', 'Accuracy'].map((name) => `${name}: ${withInterval(item, name)}`), visit(item)));
  }
  const key = [...links.map((name, place) => [outline(place), 'var(--ink)', name]), ...strategies.map((name, place) => [SQUARE, hue(place), name])];
  return element('figure', {}, element('figcaption', {}, 'Latency over bytes'), legendOf(key), chart.svg);
}

function splitFigure({ name, lines }) {
  const points = lines.flatMap((line) => line.points);
  const chart = plot({ title: `Time of a token over the round trip ${name}`, width: room('split'), height: printing ? 220 : 300,
    x: { domain: extent(points.map(([way]) => way * 1000), { from: 0, margin: 0.04 }), label: 'round trip, ms' },
    y: { domain: extent(points.map(([, time, half]) => (time + half) * 1000), { from: 0 }), label: 'ms per token' } });
  const { area, sx, sy } = chart;
  lines.forEach((line, place) => {
    area.append(graphic('path', { class: 'line', stroke: hue(place), d: path(line.points.map(([way, time]) => [way * 1000, time * 1000]), sx, sy) }));
    for (const [way, time, half] of line.points) {
      interval(area, sx, sy, way * 1000, time * 1000, 0, half * 1000, hue(place));
      area.append(tipped(marker(outline(place), sx(way * 1000), sy(time * 1000), 4.2, hue(place)), line.name, [`round trip ${seconds(way)}`, `${seconds(time)} per token`]));
    }
  });
  const key = legendOf(lines.map((line, place) => [outline(place), hue(place), line.name]));
  return element('figure', {}, name && element('figcaption', {}, name), key, chart.svg, breakEven(lines.filter((line) => line.splits)));
}

function breakEven(lines) {
  const row = (line) => {
    const known = [...line.formula].sort((one, other) => one - other);
    const formula = known.length ? [...new Set([seconds(known[0]), seconds(known.at(-1))])].join(' to ') : '';
    return element('tr', {}, element('th', { scope: 'row' }, line.name), element('td', {}, line.measured === null ? 'not crossed' : seconds(line.measured)), element('td', {}, formula));
  };
  const head = ['drafter', 'break-even, measured', 'by formula'].map((text) => element('th', { scope: 'col' }, text));
  return lines.length > 0 && element('table', { class: 'crossings' }, element('thead', {}, element('tr', {}, head)), element('tbody', {}, lines.map(row)));
}
