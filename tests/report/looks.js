// What the tests ask of the page: where things are, what covers what, and what can be seen.
const all = (selector) => [...document.querySelectorAll(selector)];
const drawn = () => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); });
const shown = (node, part) => {
  const style = getComputedStyle(node, part);
  return style.display === 'none' ? '' : style.content.replaceAll('"', '');
};
const board = () => document.querySelector('.board').parentNode;

function covered() {
  const found = [];
  for (const svg of all('main svg')) {
    const texts = [...svg.querySelectorAll('text')].map((node) => [node.textContent, node.getBoundingClientRect()]);
    const seen = texts.filter(([, box]) => box.width);
    seen.forEach(([one, a], place) => seen.slice(place + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 1.5) found.push(`${one} | ${other}`);
    }));
  }
  // What a cell holds must not reach into the next one.
  for (const cell of all('.board td, .board th, .plain td')) {
    const inside = document.createRange();
    inside.selectNodeContents(cell);
    if (inside.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1) found.push(cell.textContent);
  }
  return found;
}

globalThis.looks = {
  covered,
  texts: (selector) => all(selector).map((node) => node.textContent.trim()),
  tip: () => (document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent),
  seen: (selector) => all(selector).filter((node) => node.checkVisibility()).length,
  arrows: (selector) => ['::before', '::after'].map((part) => shown(document.querySelector(selector), part)),
  board: () => ({
    heads: all('.board th button').map((node) => [node.textContent, board().getBoundingClientRect().right - node.getBoundingClientRect().right]),
    further: document.getElementById('further').hidden ? '' : document.getElementById('further').textContent,
    at: board().scrollLeft,
  }),
  async to(selector) {
    document.querySelector(selector).scrollIntoView({ block: 'center', inline: 'center' });
    await drawn();
    const box = document.querySelector(selector).getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  },
  async end(selector) {
    const node = document.querySelector(selector);
    node.scrollLeft = node.scrollWidth;
    await drawn();
  },
  async click(selector) {
    document.querySelector(selector).click();
    await drawn();
  },
};
