// The document, the page's state, and helpers. Foreign text enters the page as text nodes only.
const data = JSON.parse(document.getElementById('data').textContent);
const columns = new Map(data.columns.map((column) => [column.name, column]));
data.cases.forEach((item, index) => { item.index = index; });

// The state in the address after '#': selection, sorting, filters.
const DEFAULTS = { job: '', sort: '', dir: '', filter: '', columns: '', off: '', case: '', query: '', group: '', outcome: '', find: '', metric: 'Speedup', router: '', x: '', times: '', kinds: '' };
const state = { ...DEFAULTS };

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  return fill(node, attributes, children);
}

function graphic(name, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function replace(id, ...children) {
  byId(id).replaceChildren(...children.flat(Infinity).filter(Boolean));
}

// Shows or hides a section and its link.
function reveal(id, on) {
  for (const node of [byId(id), document.querySelector(`[data-jump][href="#${id}"]`)]) node.hidden = !on;
}

// Numbers

function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString('en');
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString('en', { maximumFractionDigits: Math.min(decimals, 10) });
}

function seconds(value, digits = 3) {
  if (value === null || value === undefined) return '';
  const [factor, unit] = Math.abs(value) < 1e-3 ? [1e6, 'µs'] : Math.abs(value) < 1 ? [1e3, 'ms'] : [1, 's'];
  return `${short(value * factor, digits)} ${unit}`;
}

function bytes(value) {
  if (value === null || value === undefined) return '';
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${short(value / 1000 ** power, 3)} ${['B', 'kB', 'MB', 'GB', 'TB'][power]}`;
}

function measured(name, value) {
  const unit = columns.has(name) ? columns.get(name).unit : '';
  if (value === null || value === undefined) return 'not defined';
  if (unit === 's') return seconds(value);
  if (unit === 'B') return bytes(value);
  if (unit === 'x') return `${short(value)}×`;
  return unit === '%' ? `${short(value)} %` : `${short(value)} ${unit}`.trim();
}

function withInterval(item, name) {
  const value = item.figures[name];
  const half = item.figures[`${name} CI95`];
  return half > Math.abs(value) * 1e-9 ? `${measured(name, value)} ± ${measured(name, half).replace('×', '')}` : measured(name, value);
}

// Test cases

const cases = () => data.cases.filter((item) => item.job === state.job);
const hidden = () => new Set(state.off.split(',').filter(Boolean));
const shown = () => { const off = hidden(); return cases().filter((item) => !off.has(item.id)); };
const chosen = () => cases().find((item) => item.id === state.case) || cases().find((item) => item.entries.length) || cases()[0];

const backends = (item) => [...new Set([item.edge, item.cloud].filter(Boolean).map((side) => side.backend))].join(' + ') || item.algorithm;

// Charts fill the available width, so that all text has one size.
let printing = false;
const PAPER = 680;

function room(id) {
  if (printing) return PAPER;
  const style = getComputedStyle(byId(id));
  return Math.max(260, byId(id).clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
}
