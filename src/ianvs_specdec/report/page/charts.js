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

let pen = null;

// Width of a text in a chart, in its units.
function textWidth(text) {
  if (!pen) {
    pen = document.createElement('canvas').getContext('2d');
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  }
  return pen.measureText(text).width;
}

// Labels of an axis at its ticks, without those that overlap.
function tickTexts(values, sx, y, format) {
  const texts = graphic('g', { 'aria-hidden': 'true' });
  let end = -Infinity;
  for (const value of values) {
    const text = format(value);
    const half = textWidth(text) / 2;
    if (sx(value) - half < end + 6) continue;
    end = sx(value) + half;
    texts.append(graphic('text', { x: sx(value), y, 'text-anchor': 'middle' }, text));
  }
  return texts;
}

// A plot area with axes. x and y: { domain, label, log, format }. Returns the SVG, the area for marks, and both scales.
function plot({ width, height, left = 54, bottom = 44, right = 14, top = 12, x, y, title }) {
  const svg = graphic('svg', { viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': title });
  const scale = (axis, start, end) => {
    const [low, high] = axis.log ? axis.domain.map(Math.log10) : axis.domain;
    return (value) => start + (((axis.log ? Math.log10(value) : value) - low) / (high - low || 1)) * (end - start);
  };
  const sx = scale(x, left, width - right);
  const sy = scale(y, height - bottom, top);
  const axes = graphic('g', { 'aria-hidden': 'true' });
  const values = x.ticks || (x.log ? logTicks(...x.domain) : ticks(...x.domain));
  for (const value of values) axes.append(graphic('line', { class: 'grid', x1: sx(value), x2: sx(value), y1: top, y2: height - bottom }));
  axes.append(tickTexts(values, sx, height - bottom + 17, x.format || short));
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

function interval(area, sx, sy, x, y, halfX, halfY, colour) {
  if (halfX) area.append(graphic('line', { class: 'ci', stroke: colour, x1: sx(x - halfX), x2: sx(x + halfX), y1: sy(y), y2: sy(y) }));
  if (halfY) area.append(graphic('line', { class: 'ci', stroke: colour, x1: sx(x), x2: sx(x), y1: sy(y - halfY), y2: sy(y + halfY) }));
}

function path(points, sx, sy) {
  return points.map(([x, y], i) => `${i ? 'L' : 'M'}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join('');
}

const apart = (one, other) => one.x1 <= other.x0 || other.x1 <= one.x0 || one.y1 <= other.y0 || other.y1 <= one.y0;

// Names next to marks, without overlaps; names without room are in the legend only.
// items: { x, y, text }; marks: { x, y }
function placeNames(chart, items, marks) {
  const { area, width, height, left, right, top, bottom } = chart;
  const taken = marks.map(({ x, y }) => ({ x0: x - 8, x1: x + 8, y0: y - 8, y1: y + 8 }));
  const inside = (box) => box.x0 >= left && box.x1 <= width - right && box.y0 >= top && box.y1 <= height - bottom;
  for (const { x, y, text } of [...items].sort((a, b) => a.y - b.y || a.x - b.x)) {
    const long = textWidth(text) + 4;
    const boxes = [11, 20, 32, 46, 62, 80, 100, 125, 150].flatMap((far) => [[1, -0.7], [1, 0.7], [-1, -0.7], [-1, 0.7], [1, 0], [-1, 0], [0, -1], [0, 1]].map(([dx, dy]) => {
      const [x0, middle] = [x + dx * far - (long * (1 - dx)) / 2, y + dy * (far + 2)];
      return { x0, x1: x0 + long, y0: middle - 8, y1: middle + 8, far };
    }));
    const free = boxes.find((box) => inside(box) && taken.every((other) => apart(box, other)));
    if (!free) continue;
    taken.push(free);
    const [nearX, nearY] = [Math.max(free.x0, Math.min(x, free.x1)), Math.max(free.y0 + 3, Math.min(y, free.y1 - 3))];
    if (free.far > 20) area.append(graphic('line', { class: 'leader', x1: x, y1: y, x2: nearX, y2: nearY }));
    area.append(graphic('text', { class: 'strong', 'aria-hidden': 'true', x: free.x0 + 2, y: free.y1 - 4 }, text));
  }
}

function caption(id, title, about) {
  return [element('h2', { id: `${id}-title` }, title), element('p', { class: 'about' }, about)];
}

function nothing(text) {
  return element('p', { class: 'quiet' }, text);
}
