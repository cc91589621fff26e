// Single queries: the list, and one query in detail with its tokens in colour; and the set-up.

const OUTCOMES = {
  right: ['right', (entry) => judged(entry) && entry.score === 100],
  wrong: ['wrong', (entry) => judged(entry) && entry.score === 0],
  edge: ['answered on the edge', (entry) => entry.side === 'edge'],
  cloud: ['answered in the cloud', (entry) => entry.side === 'cloud'],
  failed: ['without an answer', (entry) => Boolean(entry.error)],
  retried: ['with failed attempts', (entry) => entry.turns.some((turn) => data.answers[turn.answer].failures)],
  differing: ['not lossless', (entry) => entry.turns.some((turn) => turn.identical === false)],
};

// Whether answers are right or wrong, without scores in between.
const judged = (entry) => ['choice', 'number', 'code'].includes(data.queries[entry.query].scorer);

function firstQuestion(query) {
  return query.turns ? query.turns[0] : '';
}

function selectedEntries(item) {
  const find = state.find.toLowerCase();
  return item.entries.filter((entry) => {
    const query = data.queries[entry.query];
    if (state.group && query.group !== state.group) return false;
    if (OUTCOMES[state.outcome] && !OUTCOMES[state.outcome][1](entry)) return false;
    return !find || [query.id, query.group, ...(query.turns || []), ...entry.turns.map((turn) => data.answers[turn.answer].text || '')].join(' ').toLowerCase().includes(find);
  });
}

function queries() {
  const item = chosen();
  const about = 'What was asked, what came back, who answered and why.';
  if (!item || !item.entries.length) {
    replace('queries', caption('queries', 'Queries', about), picker(), nothing('This test case has no stored answers.'));
    return;
  }
  const found = selectedEntries(item);
  const current = found.find((entry) => String(data.queries[entry.query].index) === state.query) || found[0];
  const groups = [...new Set(item.entries.map((entry) => data.queries[entry.query].group))].filter(Boolean).sort();
  const outcomes = Object.entries(OUTCOMES).filter(([, [, test]]) => item.entries.some(test));
  const option = (value, text, chosenValue) => element('option', { value, selected: value === chosenValue }, text);
  const left = item.answered - item.entries.length;
  replace('queries', caption('queries', 'Queries', left > 0 ? `${about} ${short(item.entries.length)} of ${short(item.answered)} queries are in this file; all of them are in the figures.` : about),
    onPaper(item), element('div', { class: 'tools' }, picker(),
      groups.length > 1 && element('select', { 'aria-label': 'Kind', onchange: (event) => go({ group: event.target.value, query: '' }) }, option('', 'all kinds', state.group), groups.map((name) => option(name, name, state.group))),
      element('select', { 'aria-label': 'Outcome', onchange: (event) => go({ outcome: event.target.value, query: '' }) }, option('', 'all outcomes', state.outcome), outcomes.map(([name, [text]]) => option(name, text, state.outcome))),
      element('input', { type: 'search', id: 'find', placeholder: 'Find in questions and answers', 'aria-label': 'Find', value: state.find, oninput: (event) => go({ find: event.target.value, query: '' }) }),
      element('span', { class: 'quiet' }, `${found.length} queries`)),
    element('div', { class: 'browser' },
      element('ul', { class: 'list', 'aria-label': 'Queries' }, found.map((entry) => element('li', {}, listed(entry, entry === current)))),
      element('div', { id: 'detail', 'aria-live': 'polite' }, current ? detail(item, current) : nothing('No query fits.'))));
}

function picker() {
  return element('select', { id: 'case', 'aria-label': 'Test case', onchange: (event) => go({ case: event.target.value }) },
    cases().map((item) => element('option', { value: item.id, selected: item === chosen() }, item.name)));
}

// The name of the test case, instead of the picker on paper.
const onPaper = (item) => element('p', { class: 'paper' }, item.name);

function score(entry) {
  if (entry.error) return element('span', { class: 'badge bad' }, 'no answer');
  if (entry.score === undefined) return null;
  if (judged(entry) && entry.score === 100) return element('span', { class: 'badge good' }, '✓ right');
  if (judged(entry) && entry.score === 0) return element('span', { class: 'badge bad' }, '✗ wrong');
  return element('span', { class: 'badge' }, short(entry.score, 3));
}

const side = (entry) => entry.side && element('span', { class: `badge ${entry.side}` }, entry.side);

function listed(entry, current) {
  const query = data.queries[entry.query];
  return element('button', { 'aria-current': current ? 'true' : null, onclick: () => go({ query: String(query.index) }) },
    element('span', {}, query.id || `#${query.index + 1}`), element('span', {}, side(entry), score(entry)),
    element('span', { class: 'ask' }, firstQuestion(query) || entry.turns.map((turn) => data.answers[turn.answer].text).join(' ')));
}

function detail(item, entry) {
  const query = data.queries[entry.query];
  const why = entry.routing || {};
  const model = (entry.side && item[entry.side]) || {};
  const steps = entry.steps ? entry.emitted / entry.steps : null;
  const facts = [
    ['Answered by', entry.side && `${entry.side}, ${model.backend || ''}`], ['Routed by', why.router], ['Router’s score', short(why.score, 3)], ['Router’s time', seconds(why.seconds)],
    ['Score', short(entry.score)], ['Judged by', entry.judgments && item.judge], ['First token', seconds(entry.ttft)], ['Latency', seconds(entry.latency)], ['Tokens', short(entry.tokens)], ['Tokens per step (tau)', short(steps, 3)], ['Cost', short(entry.cost)],
    ['Reference', (query.references || []).length === 1 && query.references[0].length < 60 && query.references[0]],
  ];
  const turns = Math.max((query.turns || []).length, entry.turns.length);
  return [element('h3', {}, [query.group, query.id || `#${query.index + 1}`].filter(Boolean).join(' · '), side(entry), score(entry)),
    element('dl', { class: 'facts' }, facts.filter(([, value]) => value).map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value)))),
    entry.error && element('p', { class: 'note' }, `No answer: ${entry.error}`), attempts(entry.failures),
    query.system && [element('div', { class: 'label' }, 'System'), element('p', { class: 'said prompt' }, query.system)],
    Array.from({ length: turns }, (_, i) => turn(query, entry, i)), before(entry), others(item, entry)];
}

function turn(query, entry, index) {
  const answer = entry.turns[index] && data.answers[entry.turns[index].answer];
  const reference = (query.references || [])[index];
  const judgment = (entry.judgments || [])[index];
  return element('div', { class: 'turn' },
    query.turns && query.turns[index] && [element('div', { class: 'label' }, 'Question'), element('p', { class: 'said prompt' }, query.turns[index])],
    answer && answerNodes(answer, entry.turns[index]),
    judgment && element('details', {}, element('summary', { class: 'label' }, `Judgment${judgment[0] === null ? '' : ` (${short(judgment[0])}, ${entry.rules[index]} rating)`}`), element('p', { class: 'said' }, judgment[1])),
    reference && reference.length >= 60 && element('details', {}, element('summary', { class: 'label' }, 'Reference'), element('p', { class: 'said' }, reference)));
}

function answerNodes(answer, use) {
  const rows = [`${answer.backend}`, answer.completion_tokens && `${short(answer.completion_tokens)} tokens`, answer.finish === 'length' && 'cut at max_tokens', answer.truncated && `${short(answer.truncated)} tokens of the prompt left out`,
    use.replayed && 'replayed from an earlier run', use.identical === false && `differs from the model’s own output at token ${use.difference + 1}${use.near_tie ? ', a near-tie' : ''}`,
    (answer.bytes_up || answer.bytes_down) && `${bytes(answer.bytes_up)} up, ${bytes(answer.bytes_down)} down`, answer.memory && `${bytes(answer.memory)} of weights and caches`];
  return [element('div', { class: 'label' }, `Answer (${rows.filter(Boolean).join(', ')})`), colouredText(answer), attempts(answer.failures), timeline(answer)];
}

function attempts(failures) {
  return failures && failures.length > 0 && element('p', { class: 'quiet' }, `Failed attempts: ${failures.map(([time, what]) => `${what} after ${seconds(time)}`).join('; ')}`);
}

const MEANING = { p: 'from reading the prompt', a: 'drafted and accepted', t: 'the model’s own, at the end of a step' };

function colouredText(answer) {
  const { tokens, kinds = '' } = answer;
  const drafted = kinds.includes('a') || answer.rejected;
  const legend = drafted && element('div', { class: 'key' }, element('span', {}, element('span', { class: 'token a' }, 'accepted draft')), element('span', {}, element('span', { class: 'token t' }, 'the model’s own')),
    kinds.includes('p') && element('span', {}, element('span', { class: 'token p' }, 'from reading the prompt')),
    answer.rejected && tokens && element('span', {}, element('del', {}, 'rejected draft')),
    answer.near_ties && tokens && element('span', {}, element('span', { class: 'token tie' }, 'a near-tie')));
  if (!tokens || !drafted) {
    const cells = drafted && element('div', { class: 'strip', 'aria-hidden': 'true' }, [...kinds].map((kind) => element('i', { class: kind })));
    return [element('p', { class: 'said answer' }, answer.text), cells && legend, cells,
      drafted && !tokens && element('p', { class: 'quiet' }, 'One cell per token: without the model’s tokenizer, token boundaries are unknown.')];
  }
  const rejected = new Map((answer.rejected || []).map(([place, text, count]) => [place, [text, count]]));
  const near = new Set(answer.near_ties || []);
  const nodes = tokens.flatMap((text, place) => {
    const gone = rejected.get(place);
    const kind = kinds[place] || '';
    const title = `token ${place + 1}: ${MEANING[kind] || ''}${near.has(place) ? ', a near-tie' : ''}`;
    const end = text === '' && place === tokens.length - 1 ? ' end' : '';
    return [gone && element('del', { title: `${gone[1]} drafted tokens rejected here` }, gone[0]), element('span', { class: `token ${kind}${near.has(place) ? ' tie' : ''}${end}`, title }, text)];
  });
  return [legend, element('p', { class: 'said answer' }, nodes.filter(Boolean))];
}

function timeline(answer) {
  const chunks = answer.chunks || [];
  if (!chunks.length) return null;
  const [width, left, right] = [Math.min(720, room('queries')), 6, 70];
  const last = chunks[chunks.length - 1][0] || 1;
  const sx = (time) => left + (time / last) * (width - left - right);
  const svg = graphic('svg', { viewBox: `0 0 ${width} 34`, role: 'img', 'aria-label': `first piece after ${seconds(chunks[0][0] / 1000)}, last after ${seconds(last / 1000)}, ${chunks.length} pieces` });
  svg.append(graphic('line', { class: 'axis', x1: left, x2: sx(last), y1: 16, y2: 16 }));
  chunks.forEach(([time, count]) => svg.append(graphic('line', { x1: sx(time), x2: sx(time), y1: 16 - Math.min(12, 3 + 1.6 * count), y2: 16, stroke: 'var(--accent)', 'stroke-width': 1.6 })));
  svg.append(graphic('text', { x: sx(chunks[0][0]), y: 32, 'text-anchor': sx(chunks[0][0]) < 60 ? 'start' : 'middle' }, seconds(chunks[0][0] / 1000)), graphic('text', { x: sx(last) + 8, y: 18 }, seconds(last / 1000)));
  return element('figure', {}, svg, element('figcaption', { class: 'label' }, 'Arrival of each chunk of the answer; taller marks are more tokens.'));
}

function before(entry) {
  if (!entry.before) return null;
  return [element('h3', {}, 'The other model’s answer'), entry.before.map((use) => answerNodes(data.answers[use.answer], use))];
}

function others(item, entry) {
  const same = cases().filter((other) => other !== item).map((other) => [other, other.entries.find((one) => one.query === entry.query)]).filter(([, one]) => one);
  if (!same.length) return null;
  const text = (one) => one.error || one.turns.map((use) => data.answers[use.answer].text).join(' … ');
  const query = String(data.queries[entry.query].index);
  return element('details', {}, element('summary', { class: 'label' }, `The same query in ${same.length} other test cases`),
    element('table', { class: 'others' }, element('tbody', {}, same.map(([other, one]) => element('tr', {},
      element('td', {}, element('button', { onclick: () => go({ case: other.id, query }) }, other.name)),
      element('td', {}, text(one).slice(0, 180)), element('td', {}, side(one), score(one), ` ${seconds(one.latency)}`))))));
}

// The set-up of a test case

function pairs(title, mapping, open) {
  const known = Object.entries(mapping).filter(([, value]) => value !== '');
  return known.length > 0 && element('details', { open }, element('summary', {}, title),
    element('dl', { class: 'pairs' }, known.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value)))));
}

function setup() {
  const item = chosen();
  const all = cases();
  const varied = Object.fromEntries(Object.keys(item.configuration).filter((key) => new Set(all.map((other) => other.configuration[key])).size > 1).map((key) => [key, item.configuration[key]]));
  const extra = { ...Object.fromEntries(Object.entries(item.memory).map(([name, value]) => [`memory held by the ${name} model`, bytes(value)])),
    ...Object.fromEntries(Object.entries(item.failures.attempts || {}).map(([kind, count]) => [`failed attempts: ${kind}`, String(count)])) };
  const repeats = item.repeats.length > 1 && element('details', {}, element('summary', {}, 'Repeats'), element('div', { class: 'scroll' }, element('table', { class: 'plain' },
    item.repeats.map((row, i) => element('tr', {}, row.map((text) => element(i ? 'td' : 'th', {}, text)))))));
  replace('setup', caption('setup', 'Set-up', 'Configuration and environment of a test case, as they were when it ran.'), onPaper(item), element('div', { class: 'tools' }, picker()),
    item.notes.length > 0 && element('ul', {}, item.notes.map((note) => element('li', {}, note))),
    pairs('Differences from the other test cases', varied, true), pairs('Run and environment', { ...item.environment, ...extra }, true), pairs('Whole configuration', item.configuration, false), repeats);
}
