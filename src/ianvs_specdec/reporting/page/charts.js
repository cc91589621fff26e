// Axes, marks and lines, as SVG.

function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of high / low > 300 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5]) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found;
}

function extent(values, { margin = 0.06, from = null } = {}) {
  const known = values.filter((value) => Number.isFinite(value));
  let low = Math.min(...known);
  let high = Math.max(...known);
  if (from !== null) { low = Math.min(low, from); high = Math.max(high, from); }
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// A plot area with axes. x and y: { domain, label, log, format }. Gives the SVG, the area for marks, and both scales.
function plot({ width = 560, height = 360, left = 54, bottom = 44, right = 14, top = 12, x, y, title }) {
  const svg = graphic('svg', { viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': title });
  const scale = (axis, start, end) => {
    const [low, high] = axis.log ? axis.domain.map(Math.log10) : axis.domain;
    return (value) => start + (((axis.log ? Math.log10(value) : value) - low) / (high - low || 1)) * (end - start);
  };
  const sx = scale(x, left, width - right);
  const sy = scale(y, height - bottom, top);
  const axes = graphic('g', { 'aria-hidden': 'true' });
  for (const value of x.ticks || (x.log ? logTicks(...x.domain) : ticks(...x.domain))) {
    axes.append(graphic('line', { class: 'grid', x1: sx(value), x2: sx(value), y1: top, y2: height - bottom }));
    axes.append(graphic('text', { x: sx(value), y: height - bottom + 17, 'text-anchor': 'middle' }, (x.format || short)(value)));
  }
  for (const value of y.ticks || ticks(...y.domain)) {
    axes.append(graphic('line', { class: 'grid', x1: left, x2: width - right, y1: sy(value), y2: sy(value) }));
    axes.append(graphic('text', { x: left - 8, y: sy(value) + 4, 'text-anchor': 'end' }, (y.format || short)(value)));
  }
  axes.append(graphic('line', { class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  axes.append(graphic('text', { x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle' }, x.label));
  if (y.label) {
    const middle = (top + height - bottom) / 2;
    axes.append(graphic('text', { transform: `translate(13 ${middle}) rotate(-90)`, 'text-anchor': 'middle' }, y.label));
  }
  const area = graphic('g');
  svg.append(axes, area);
  return { svg, area, sx, sy, width, height, left, right, top, bottom };
}

function marker(shape, x, y, size, colour) {
  const r = size;
  const path = {
    square: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    diamond: `M${x} ${y - 1.35 * r}L${x + 1.35 * r} ${y}L${x} ${y + 1.35 * r}L${x - 1.35 * r} ${y}z`,
    up: `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}L${x - 1.2 * r} ${y + r}z`,
    down: `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}L${x - 1.2 * r} ${y - r}z`,
    plus: `M${x - r / 2.4} ${y - 1.2 * r}h${r / 1.2}v${r * 0.78}h${r * 0.78}v${r / 1.2}h${-r * 0.78}v${r * 0.78}h${-r / 1.2}v${-r * 0.78}h${-r * 0.78}v${-r / 1.2}h${r * 0.78}z`,
  }[shape];
  return path ? graphic('path', { class: 'mark', d: path, fill: colour }) : graphic('circle', { class: 'mark', cx: x, cy: y, r, fill: colour });
}

function interval(area, sx, sy, x, y, halfX, halfY, colour) {
  if (halfX) area.append(graphic('line', { class: 'ci', stroke: colour, x1: sx(x - halfX), x2: sx(x + halfX), y1: sy(y), y2: sy(y) }));
  if (halfY) area.append(graphic('line', { class: 'ci', stroke: colour, x1: sx(x), x2: sx(x), y1: sy(y - halfY), y2: sy(y + halfY) }));
}

function path(points, sx, sy) {
  return points.map(([x, y], i) => `${i ? 'L' : 'M'}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join('');
}

function swatch(shape, colour) {
  return graphic('svg', { width: 14, height: 14, viewBox: '-7 -7 14 14', style: 'width:14px', 'aria-hidden': 'true' }, marker(shape, 0, 0, 4.6, colour));
}

function caption(id, title, about) {
  return [element('h2', { id: `${id}-title` }, title), element('p', { class: 'about' }, about)];
}

function nothing(text) {
  return element('p', { class: 'quiet' }, text);
}
