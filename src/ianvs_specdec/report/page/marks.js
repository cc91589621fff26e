// Colours and shapes: one colour for each combination of back ends, grey for autoregressive decoding; one shape and one
// colour for each router.

const PALETTE = 10;
const kindsOf = (key) => [...new Set(data.cases.map(key))];
const coloured = kindsOf(backends).filter((name) => name !== 'autoregressive').sort();
const routers = kindsOf((item) => item.router).sort();
const colourOf = (item) => (backends(item) === 'autoregressive' ? 'var(--base)' : hue(coloured.indexOf(backends(item))));
const routerColour = (name) => hue(routers.indexOf(name));
const shapeOf = (name) => outline(routers.indexOf(name));

// The colour of the back end, if unique in the list; else that of the router, if unique; else one per test case.
function ownColour(item, list) {
  if (new Set(list.map(colourOf)).size === list.length) return colourOf(item);
  return new Set(list.map((one) => one.router)).size === list.length ? routerColour(item.router) : hue(list.indexOf(item));
}

// After the palette, turns by the golden angle separate neighbours, and lightness similar hues.
function hue(place) {
  if (place < PALETTE) return `var(--c${place})`;
  const turn = place - PALETTE;
  return `hsl(${((turn * 137.508) % 360).toFixed(2)} ${[75, 45][turn % 2]}% ${[46, 60, 36][turn % 3]}%)`;
}

const corner = (count, radius, start = -90) => Array.from({ length: count }, (_, i) => {
  const angle = ((start + (360 * i) / count) * Math.PI) / 180;
  return [radius * Math.cos(angle), radius * Math.sin(angle)];
});

function star(points, inner) {
  const outside = corner(points, 1.4);
  const inside = corner(points, inner, -90 + 180 / points);
  return outside.flatMap((point, i) => [point, inside[i]]);
}

const PLUS = [[-0.42, -1.2], [0.42, -1.2], [0.42, -0.42], [1.2, -0.42], [1.2, 0.42], [0.42, 0.42], [0.42, 1.2], [-0.42, 1.2], [-0.42, 0.42], [-1.2, 0.42], [-1.2, -0.42], [-0.42, -0.42]];
const SHAPES = [corner(40, 1), [[-1, -1], [1, -1], [1, 1], [-1, 1]], corner(4, 1.35), [[0, -1.2], [1.2, 1], [-1.2, 1]], [[0, 1.2], [-1.2, -1], [1.2, -1]],
  PLUS, star(5, 0.55), PLUS.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]), [[-1.5, -0.6], [1.5, -0.6], [1.5, 0.6], [-1.5, 0.6]], corner(6, 1.25)];

// The outline of a mark, relative to its size; after SHAPES, stars with more and more points, slim and stout.
function outline(place) {
  if (place < SHAPES.length) return SHAPES[place];
  const further = place - SHAPES.length;
  return star(further < 2 ? 3 + further : 5 + Math.floor(further / 2), [0.35, 0.8][further % 2]);
}

const CIRCLE = SHAPES[0];
const SQUARE = SHAPES[1];

function marker(shape, x, y, size, colour) {
  const d = shape.map(([dx, dy], i) => `${i ? 'L' : 'M'}${(x + dx * size).toFixed(2)} ${(y + dy * size).toFixed(2)}`).join('');
  return graphic('path', { class: 'mark', d: `${d}z`, fill: colour });
}

function swatch(shape, colour) {
  return graphic('svg', { width: 16, height: 16, viewBox: '-8 -8 16 16', style: 'width:16px', 'aria-hidden': 'true' }, marker(shape, 0, 0, 4.8, colour));
}

// A legend. entries: [shape, colour, name]
function legendOf(entries, ...more) {
  return element('div', { class: 'key' }, entries.map(([shape, colour, name]) => element('span', {}, swatch(shape, colour), name)), more);
}
