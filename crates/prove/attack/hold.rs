//! Taking too much, and staying too long.

use crate::call::{self, plain, sys};
use crate::{numbers, say};
use std::io::Write as _;

/// What was taken is kept so long, so that a watch sees it.
const KEPT_MS: u64 = 400;
/// What stays behind ends by itself after so many seconds.
const STAYS_SECONDS: u32 = 60;
/// Longer than a step may take otherwise.
const FILLS_SECONDS: u32 = 120;
const MEBIBYTE: usize = 1 << 20;

/// Does what a verb of this module says; whether there is such.
pub(crate) fn done(verb: &str, words: &[&str]) -> bool {
    let number = words.first().and_then(|word| word.parse().ok()).unwrap_or(0);
    match (verb, words) {
        ("forks", _) => forks(number),
        ("fill-memory", _) => fill_memory(number),
        ("fill-file", [_, path]) => fill_file(number, path),
        ("files", _) => files(number),
        ("flood", _) => flood(number),
        ("stay", [mark]) => stay(mark),
        ("daemon", [mark]) => daemon(mark),
        ("orphans", _) => orphans(number),
        ("orphans-unburied", _) => unburied(number),
        ("pause", _) => {
            call::alarm(0);
            call::pause();
        }
        ("await", _) => {
            say("awaiting");
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        }
        ("burn", [_, processes]) => burn(number, processes.parse().unwrap_or(1)),
        _ => return false,
    }
    true
}

fn forks(most: usize) {
    let mut children = Vec::new();
    let mut error = None;
    while children.len() < most {
        match call::fork() {
            Ok(0) => {
                call::alarm(STAYS_SECONDS);
                call::pause();
            }
            Ok(child) => children.push(child),
            Err(met) => {
                error = Some(met);
                break;
            }
        }
    }
    told("made", children.len(), error);
    for child in children {
        let _ = plain(62, &[i64::from(child), 9]);
    }
    call::wait_all();
}

fn told(word: &str, count: usize, error: Option<i32>) {
    say(&format!("{word} {count} {}", error.map_or_else(|| "all".to_owned(), numbers::name)));
}

fn fill_memory(mebibytes: usize) {
    // An emulated machine takes long for it.
    call::alarm(FILLS_SECONDS);
    let mut held: Vec<Vec<u8>> = Vec::new();
    for turn in 0..mebibytes {
        let mut block = Vec::new();
        if block.try_reserve_exact(MEBIBYTE).is_err() {
            told("filled", turn, Some(12));
            return;
        }
        block.resize(MEBIBYTE, u8::try_from(turn % 250 + 1).unwrap_or(1));
        held.push(block);
    }
    // Kept until it has been seen, and not left out by a clever compiler.
    std::thread::sleep(std::time::Duration::from_millis(KEPT_MS));
    told("filled", std::hint::black_box(&held).len(), None);
}

fn fill_file(mebibytes: usize, path: &str) {
    let block = vec![0x5a_u8; MEBIBYTE];
    let result = std::fs::File::create(path).map(|mut file| {
        (0..mebibytes).find_map(|turn| file.write_all(&block).err().map(|error| (turn, error.raw_os_error())))
    });
    match result {
        Ok(None) => {
            std::thread::sleep(std::time::Duration::from_millis(KEPT_MS));
            told("filled", mebibytes, None);
        }
        Ok(Some((turn, error))) => told("filled", turn, error),
        Err(error) => told("filled", 0, error.raw_os_error()),
    }
    let _ = std::fs::remove_file(path);
}

fn files(most: usize) {
    let mut made = 0;
    let mut error = None;
    while made < most {
        match crate::doors::open("/dev/null", 0) {
            Ok(_) => made += 1,
            Err(met) => {
                error = Some(met);
                break;
            }
        }
    }
    told("opened", made, error);
}

/// So many MiB to each stream.
fn flood(mebibytes: usize) {
    let block = vec![b'x'; MEBIBYTE];
    for _ in 0..mebibytes {
        let _ = std::io::stdout().write_all(&block);
        let _ = std::io::stderr().write_all(&block);
    }
    say("");
    say("flooded");
}

/// Named by its arguments, deaf to every signal that can be ignored, and holding its streams.
fn stay(mark: &str) {
    say(&format!("staying {mark}"));
    call::deaf();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(u64::from(STAYS_SECONDS));
    while std::time::Instant::now() < deadline {
        let _ = plain(35, &[0, 0]);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// A daemon by the book, which holds its streams; its parent ends at once.
fn daemon(mark: &str) {
    if call::fork() == Ok(0) {
        let _ = plain(112, &[]);
        if call::fork() == Ok(0) {
            call::deaf();
            call::alarm(0);
            stay(mark);
        }
        call::exit(0);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    say("left");
}

/// Children whose parents are gone: the first process must bury them.
fn orphans(count: usize) {
    for _ in 0..count {
        match call::fork() {
            Ok(0) => {
                if call::fork() == Ok(0) {
                    call::exit(0);
                }
                call::exit(0);
            }
            Ok(child) => {
                call::wait(child);
            }
            Err(_) => break,
        }
    }
    let mut zombies = usize::MAX;
    for _ in 0..100 {
        zombies = dead();
        if zombies == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    say(&format!("zombies {zombies}"));
}

/// Children that nobody waits for.
fn unburied(count: usize) {
    for _ in 0..count {
        if call::fork() == Ok(0) {
            call::exit(0);
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    say(&format!("zombies {}", dead()));
    call::wait_all();
}

fn dead() -> usize {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let states = processes.filter_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    });
    states.filter(|state| *state == 'Z').count()
}

fn burn(ms: usize, processes: usize) {
    for _ in 0..processes {
        if call::fork() == Ok(0) {
            let end = std::time::Instant::now() + std::time::Duration::from_millis(ms as u64);
            while std::time::Instant::now() < end {}
            call::exit(0);
        }
    }
    call::wait_all();
    let mut usage = [0_i64; 18];
    let _ = sys(98, [(-1).into(), (&mut usage).into()]);
    let [user_s, user_us, system_s, system_us, ..] = usage;
    say(&format!("burnt {}", (user_s + system_s) * 1000 + (user_us + system_us) / 1000));
}
