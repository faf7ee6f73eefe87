// Evaluates expressions with GitHub's own package. One JSON object a line: {expression, contexts, functions}, where
// functions holds the values of the status functions; the answer is {value} or {error}.
import {createInterface} from "node:readline";
import {Evaluator, Lexer, Parser, data} from "@actions/expressions";

const evaluate = ({expression, contexts, functions}) => {
  const constants = Object.entries(functions).map(([name, value]) => ({
    name,
    minArgs: 0,
    maxArgs: 0,
    call: () => new data.BooleanData(value),
  }));
  const {tokens} = new Lexer(expression).lex();
  const tree = new Parser(tokens, Object.keys(contexts), constants).parse();
  const known = JSON.parse(JSON.stringify(contexts), data.reviver);
  const named = new Map(constants.map((one) => [one.name.toLowerCase(), one]));
  return JSON.parse(JSON.stringify(new Evaluator(tree, known, named).evaluate(), data.replacer));
};

for await (const line of createInterface({input: process.stdin})) {
  let answer;
  try {
    answer = {value: evaluate(JSON.parse(line))};
  } catch (error) {
    answer = {error: error.message};
  }
  console.log(JSON.stringify(answer));
}
