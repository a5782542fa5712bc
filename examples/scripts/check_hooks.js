// Replay the recorded calls of hooks with the code of today, and say which of them end otherwise.
//
//     holdfast run examples/scripts/check_hooks.js --code hooks=shop.hooks:register since=1d
//
// It prints a line for each call that differs, and returns the summary. `shop.hooks:register` registers the hooks; it
// runs in another process, on a fork of the store.

const options = args.since === undefined ? {} : { since: args.since };
const replay = await holdfast.replay.run_hooks(store, "hooks", options);

for (const call of replay.differing) {
  print(`${call.hook} of ${call.scope} ${call.key}: ${call.outcome}, and was ${call.recorded_outcome}`);
  if (call.diff) print(call.diff);
}

return replay.summary;
