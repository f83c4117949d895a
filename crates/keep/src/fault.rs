//! Places at which a test stops one of our processes, to end one of them there. In debug builds alone, and only where
//! [`VARIABLE`] names a folder: a release build has neither the code nor the words.
//!
//! A process that comes by the place whose name stands in the folder's file `armed` takes that file away, so that it
//! happens once, and stops itself. Whoever armed it sees it stand, ends whom it wants, and lets it go on.

/// Names the folder of the file `armed`.
#[cfg(debug_assertions)]
pub const VARIABLE: &str = "FUMEHOOD_FAULT";

macro_rules! points {
    ($($point:ident)*) => {
        /// A step of the life of a sandbox, named after what has just been done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point { $($point),* }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$point),*];
        }
    };
}

points! {
    // The daemon makes a sandbox, or takes one of a pool.
    CreateAsked CreateSpawned CreateBorn CreateRegistered PoolBorn ClaimRegistered ClaimDone
    // It works in one, pauses it, wakes it, changes its time, ends it.
    Entered PauseMarked PauseTimeless PauseDone WakeDone WakeTimed TtlDone StopAsked StopDone ExpiryFound IdleFound
    // It keeps files, and makes children.
    SnapshotMeant SnapshotTaken SnapshotKept SnapshotForgotten ForkTaken ForkBorn
    // It starts, and finds what lives.
    AdoptRead AdoptAsked AdoptTaken
    // A keeper makes its sandbox.
    BirthFolder BirthPlaced BirthRestored BirthRecorded BirthLaunched BirthReaper BirthListening BirthDescribed BirthTold
    // It does what it is asked.
    ClaimRecorded ExecRecorded ExecBegun ExecEnded PauseRecorded PauseFrozen ResumeRecorded ResumeThawed ExpireRecorded
    SnapshotFrozen SnapshotCopied SnapshotPublished
    // It ends.
    EndRecorded EndKilled EndReaped EndRemoved EndClosed
    // Its reaper cleans up.
    ReapWoken ReapReaped ReapRecorded ReapRemoved
}

/// Stands here for as long as a test wants, if one does.
#[cfg(debug_assertions)]
pub fn point(point: Point) {
    use rustix::process::{Signal, getpid, kill_process};
    let Some(folder) = std::env::var_os(VARIABLE) else { return };
    let folder = std::path::Path::new(&folder);
    let armed = folder.join("armed");
    let name = format!("{point:?}");
    let is_here = std::fs::read_to_string(&armed).is_ok_and(|wanted| wanted == name);
    let own = getpid();
    // Of those who come by at once, one takes it.
    if is_here && std::fs::rename(&armed, folder.join(format!("{name}.{}", own.as_raw_nonzero()))).is_ok() {
        let _ = kill_process(own, Signal::STOP);
    }
}

/// Nothing, in a build that is for use.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn point(_point: Point) {}
