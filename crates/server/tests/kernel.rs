//! The kernel of the code interpreter, by its own tests.

use std::process::Command;

#[test]
fn the_kernel_holds_what_its_tests_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/interpreter");
    let ran = Command::new("python3")
        .args(["-B", "-m", "unittest", "-v", "test_kernel"])
        .current_dir(folder)
        .output()
        .expect("the tests need python3");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && told.contains("OK"), "{told}");
}
