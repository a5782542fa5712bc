//! Gives forged bytes to every function that reads bytes: `tests.support.core_oracle` compares what the native core makes
//! of them with what the core in Python makes. Only the crate is instrumented; a difference is a crash.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::OnceLock;

static CHECK: OnceLock<Py<PyAny>> = OnceLock::new();

fn oracle(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // The package finds the instrumented core in place of its own.
    let modules = py.import("sys")?.getattr("modules")?;
    modules.set_item("holdfast._native", py.import("_native")?)?;
    let check = py.import("tests.support.core_oracle")?.getattr("check")?;
    Ok(check.unbind())
}

fuzz_target!(|data: &[u8]| {
    if CHECK.get().is_none() {
        use _native::_native;
        pyo3::append_to_inittab!(_native);
        Python::initialize();
        let check = Python::attach(|py| oracle(py).inspect_err(|error| error.print(py)));
        let _ = CHECK.set(check.expect("the oracle can be imported"));
    }
    Python::attach(|py| {
        let done = CHECK.wait().call1(py, (PyBytes::new(py, data),));
        if let Err(error) = done {
            error.print(py);
            std::process::abort();
        }
    });
});
