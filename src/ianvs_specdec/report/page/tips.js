// Tooltips at the pointer, the keyboard's focus or a tap; marks of scrollable boxes; menus.

let noted = null;
let again = null;
let earlier = null;
let finger = false;

function showTip(node, title, lines, place = null) {
  const tip = byId('tip');
  tip.replaceChildren(element('b', {}, title), lines.filter(Boolean).join('\n'));
  tip.hidden = false;
  const area = node.getBoundingClientRect();
  const { x, y } = place || { x: Math.min(area.right, area.left + 40), y: area.bottom - 12 };
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(8, Math.min(window.innerWidth - width - 8, x + 14))}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? Math.max(8, Math.min(y, area.top) - height - 12) : y + 18}px`;
  noted = node;
  again = place ? hideTip : () => {
    const now = node.getBoundingClientRect();
    if (now.bottom < 0 || now.top > window.innerHeight) hideTip(); else showTip(node, title, lines);
  };
}

function hideTip() { byId('tip').hidden = true; noted = null; }

// A tap shows the tooltip; a second tap clicks.
document.addEventListener('pointerdown', (event) => {
  finger = event.pointerType === 'touch';
  earlier = noted;
  if (noted && !noted.contains(event.target)) hideTip();
}, true);
document.addEventListener('keydown', () => { finger = false; }, true);
document.addEventListener('scroll', () => { if (noted) again(); }, true);
document.addEventListener('click', (event) => {
  const node = event.target.closest('[title]');
  if (finger && node) showTip(node, node.title, []);
});

function explained(node, title, lines) {
  node.addEventListener('pointermove', (event) => { if (event.pointerType !== 'touch') showTip(node, title, lines, { x: event.clientX, y: event.clientY }); });
  node.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') hideTip(); });
  node.addEventListener('focus', () => showTip(node, title, lines));
  node.addEventListener('blur', hideTip);
  return node;
}

function tipped(node, title, lines, onclick) {
  const text = [title, ...lines].filter(Boolean).join(', ');
  fill(node, { tabindex: 0, role: onclick ? 'button' : 'img', 'aria-label': text }, []);
  explained(node, title, lines);
  node.addEventListener('click', () => { if (finger && earlier !== node) showTip(node, title, lines); else if (onclick) onclick(); });
  if (onclick) node.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); onclick(); } });
  return node;
}

// A word with its definition as a tooltip.
function term(label, about) {
  const node = explained(element('button', { class: 'term', type: 'button', 'aria-description': about }, label), label, [about]);
  node.addEventListener('click', () => showTip(node, label, [about]));
  return node;
}

// Marks a box while its content can scroll to either side.
function cue(outer, inner, changed = () => {}) {
  const look = () => {
    outer.classList.toggle('less', inner.scrollLeft > 2);
    outer.classList.toggle('more', inner.scrollWidth - inner.clientWidth - inner.scrollLeft > 2);
    changed();
  };
  inner.addEventListener('scroll', look, { passive: true });
  const watch = new ResizeObserver(look);
  for (const node of [inner, ...inner.children]) watch.observe(node);
  return outer;
}

function scrolling(label, content, changed) {
  const inner = element('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${label}, scrolls sideways` }, content);
  return cue(element('div', { class: 'cued' }, inner), inner, changed);
}

// A menu of check boxes.
function menu(id, title, choices) {
  const open = byId(id) && byId(id).open;
  return element('details', { class: 'menu', id, open: open || null }, element('summary', {}, title), element('div', {}, choices.map(([label, checked, changed]) =>
    element('label', {}, element('input', { type: 'checkbox', checked, onchange: (event) => changed(event.target.checked) }), ' ', label))));
}
