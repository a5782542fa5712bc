-- A hook: no agent sets its budget above 100, and what it sets is a number.
--
--     store.hooks.before("state.set", scope="agent:*", key="budget", fail_closed=True)(
--         ScriptHook("examples/scripts/limit_budget.lua", store))
--
-- It refuses the change with a veto.

return function(call)
  if type(call.value) ~= "number" then
    error(holdfast.errors.VetoError("a budget is a number"))
  end
  if call.value > 100 then
    error(holdfast.errors.VetoError("a budget is at most 100, not " .. call.value))
  end
  call:note{limit = 100}
end
