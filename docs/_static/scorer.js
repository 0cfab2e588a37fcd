// How the search ranks what it finds: pages on design, results and the project come after all others, and
// guides before ops. Sphinx asks for its own numbers too.
const later = { design: 30, results: 30, project: 30, ops: 1 };
var Scorer = {
  score: ([page, , , , score]) => score - (later[page.split("/")[0]] || 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
