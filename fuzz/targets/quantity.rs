//! Any text as a size, a time or a number of processors: it is read or refused with a reason that is
//! safe to print, never zero, and what is whole is read back from what is shown.

#![no_main]

use fumehood_model::quantity::{
    QuantityError, bytes, cpu_millis, duration, show_bytes, show_cpus, show_duration,
};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

fuzz_target!(|text: &str| {
    refusal(bytes(text), |size| {
        assert!(*size > 0);
        // Below a KiB the word is for people alone.
        if *size >= 1024 {
            let again = bytes(&show_bytes(*size)).expect("what is shown can be written");
            assert!(again <= *size && again >= size / 100 * 90, "{size} is shown as {again}");
        }
    });
    refusal(duration(text), |time| {
        assert!(*time >= Duration::from_millis(1));
        assert_eq!(duration(&show_duration(*time)).as_ref(), Ok(time));
    });
    refusal(cpu_millis(text), |millis| {
        assert!(*millis > 0);
        assert_eq!(cpu_millis(&show_cpus(*millis)).as_ref(), Ok(millis));
    });
});

fn refusal<T>(read: Result<T, QuantityError>, good: impl FnOnce(&T)) {
    match read {
        Ok(value) => good(&value),
        Err(error) => {
            let said = error.to_string();
            assert!(!said.chars().any(char::is_control), "a message is safe to show: {said:?}");
            assert!(!error.remedy().is_empty());
        }
    }
}
