//! Connections to servers that wait for the next request to the same identity.
//!
//! A request takes one only after it was cleared; the address behind it is the one that was judged
//! when it was dialled.

use super::limits;
use super::upstream::{Link, One, Two};
use fumehood_model::egress::Identity;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Rc<RefCell<Shelf>>);

#[derive(Debug, Default)]
struct Shelf {
    /// Oldest first.
    ones: VecDeque<Kept<Box<One>>>,
    twos: VecDeque<Kept<Two>>,
    is_swept: bool,
    /// Who is the first to connect, while somebody is.
    firsts: HashMap<Identity, Weak<Mutex<()>>>,
    /// Who was offered HTTP/2 and took HTTP/1, the latest last.
    ones_only: VecDeque<Identity>,
}

#[derive(Debug)]
struct Kept<T> {
    identity: Identity,
    since: Instant,
    link: T,
}

// === impl Pool ===

impl Pool {
    /// A connection that can be used at once.
    pub(crate) async fn take(&self, identity: &Identity, client_speaks_http2: bool) -> Option<Link> {
        if client_speaks_http2 && let Some(two) = self.two(identity) {
            return Some(Link::Two(two));
        }
        loop {
            let mut one = self.0.borrow_mut().take_one(identity, client_speaks_http2)?;
            // The server may have closed it, or said something that no request of ours asked for.
            if one.is_fresh().await {
                return Some(Link::One(one));
            }
        }
    }

    /// What those hold, one after the other, who are about to connect to the same place.
    pub(crate) fn first(&self, identity: &Identity) -> Rc<Mutex<()>> {
        let mut shelf = self.0.borrow_mut();
        shelf.firsts.retain(|_, first| first.strong_count() > 0);
        if let Some(first) = shelf.firsts.get(identity).and_then(Weak::upgrade) {
            return first;
        }
        let first = Rc::default();
        shelf.firsts.insert(identity.clone(), Rc::downgrade(&first));
        first
    }

    /// Remembers that a server was offered HTTP/2 and took HTTP/1.
    pub(crate) fn note_one(&self, identity: &Identity) {
        let mut shelf = self.0.borrow_mut();
        if !shelf.ones_only.contains(identity) {
            shelf.ones_only.push_back(identity.clone());
            if shelf.ones_only.len() > limits::IDLE_CONNECTIONS {
                shelf.ones_only.pop_front();
            }
        }
    }

    pub(crate) fn speaks_one(&self, identity: &Identity) -> bool {
        self.0.borrow().ones_only.contains(identity)
    }

    fn two(&self, identity: &Identity) -> Option<Two> {
        let mut shelf = self.0.borrow_mut();
        let now = Instant::now();
        let place = shelf.twos.iter().position(|kept| kept.identity == *identity)?;
        let kept = shelf.twos.get_mut(place)?;
        kept.since = now;
        Some(kept.link.clone())
    }

    pub(crate) fn keep_one(&self, identity: &Identity, one: Box<One>) {
        let mut shelf = self.0.borrow_mut();
        shelf.ones.push_back(Kept { identity: identity.clone(), since: Instant::now(), link: one });
        if shelf.ones.len() > limits::IDLE_CONNECTIONS {
            shelf.ones.pop_front();
        }
        self.sweep(&mut shelf);
    }

    /// Shares a connection with the requests to come.
    pub(crate) fn keep_two(&self, identity: &Identity, two: &Two) {
        let mut shelf = self.0.borrow_mut();
        shelf.twos.push_back(Kept { identity: identity.clone(), since: Instant::now(), link: two.clone() });
        if shelf.twos.len() > limits::IDLE_CONNECTIONS {
            shelf.twos.pop_front();
        }
        self.sweep(&mut shelf);
    }

    /// Forgets a connection that is of no more use.
    pub(crate) fn forget_twos(&self, identity: &Identity) {
        self.0.borrow_mut().twos.retain(|kept| kept.identity != *identity);
    }

    /// Closes what lies there too long. One task while there is anything.
    fn sweep(&self, shelf: &mut Shelf) {
        if !std::mem::replace(&mut shelf.is_swept, true) {
            tokio::task::spawn_local(sweeper(Rc::downgrade(&self.0)));
        }
    }
}

// === impl Shelf ===

impl Shelf {
    /// A client of HTTP/2 takes HTTP/1 only where the server was offered better.
    fn take_one(&mut self, identity: &Identity, client_speaks_http2: bool) -> Option<Box<One>> {
        let fits = |kept: &Kept<Box<One>>| {
            kept.identity == *identity && (!client_speaks_http2 || kept.link.about.offered_http2)
        };
        // The youngest is the least likely to be closed already.
        let place = self.ones.iter().rposition(fits)?;
        self.ones.remove(place).map(|kept| kept.link)
    }
}

async fn sweeper(shelf: Weak<RefCell<Shelf>>) {
    let mut next = Instant::now() + limits::IDLE_TIME;
    loop {
        sleep_until(next).await;
        let Some(shelf) = shelf.upgrade() else { return };
        let mut shelf = shelf.borrow_mut();
        let now = Instant::now();
        shelf.ones.retain(|kept| now.duration_since(kept.since) < limits::IDLE_TIME);
        shelf.twos.retain(|kept| now.duration_since(kept.since) < limits::IDLE_TIME);
        let since = shelf.ones.iter().map(|kept| kept.since).chain(shelf.twos.iter().map(|kept| kept.since));
        match since.min() {
            Some(since) => next = since + limits::IDLE_TIME,
            None => {
                shelf.is_swept = false;
                return;
            }
        }
    }
}
