// Move a part of one agent's budget to another, both or neither, whatever others do meanwhile.
//
//     holdfast run examples/scripts/move_budget.js from=alice to=bob amount=25
//
// It prints both budgets. If there is not enough, it fails with the code of a veto.

const { from, to, amount } = args;

const budgets = await store.transaction(async (transaction) => {
  const giver = transaction.state(`agent:${from}`), receiver = transaction.state(`agent:${to}`);
  const left = (await giver.get("budget", 0)) - amount;
  if (left < 0) throw new holdfast.errors.VetoError(`${from} has ${left + amount}, and not ${amount}`);
  await giver.set("budget", left);
  await receiver.increment("budget", amount);
  return { [from]: left, [to]: await receiver.get("budget") };
});

for (const [agent, budget] of Object.entries(budgets)) print(`${agent}: ${budget}`);
