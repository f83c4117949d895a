//! The protocols that the gate reads: HTTP in the clear, and what is inside of TLS that was opened.

use crate::hello::ClientHello;
use crate::http::{Forward, Place, Secrets};
use crate::inbound::{Inbound, Protocols};
use crate::names::GATEWAY;
use crate::proxy::connect::PROXY_PORT;
use crate::tls::{Opener, Servers};
use crate::wall::Wall;
use fumehood_model::egress::{Host, Identity, Scheme};
use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

/// Opens TLS and serves HTTP. What it keeps between connections is one sandbox's.
pub struct Web<W> {
    /// `None` where no rule opens TLS: nothing is opened, and nothing of it passes this way.
    opener: Option<Opener>,
    /// Until there is a wall to forward through.
    prepared: RefCell<Option<(Servers, Rc<Secrets>)>>,
    forward: OnceCell<Forward<W>>,
}

// === impl Web ===

impl<W: Wall> Web<W> {
    pub fn new(opener: Option<Opener>, servers: Servers, secrets: Rc<Secrets>) -> Self {
        Self { opener, prepared: RefCell::new(Some((servers, secrets))), forward: OnceCell::new() }
    }

    fn forward(&self, wall: W) -> &Forward<W> {
        self.forward.get_or_init(|| {
            let prepared = self.prepared.borrow_mut().take();
            let (servers, secrets) = prepared.unwrap_or_else(|| (Servers::new(Vec::new()), Rc::default()));
            Forward::new(wall, servers, secrets)
        })
    }
}

impl<W: Wall> Protocols<W> for Web<W> {
    async fn tls(&self, wall: W, inbound: Inbound, _: ClientHello) {
        let Inbound { stream, first, via, place } = inbound;
        // A proxy's client that speaks TLS to the proxy itself names nobody.
        let Some(identity) = place.and_then(|place| place.speaking(Scheme::Https)) else { return };
        let Some(opener) = &self.opener else { return };
        self.forward(wall).serve_tls(opener, (stream, first.into()), identity, via).await;
    }

    async fn http(&self, wall: W, inbound: Inbound) {
        let Inbound { stream, first, via, place } = inbound;
        let place = match place {
            Some(place) => place.speaking(Scheme::Http).map(Place::Fixed),
            None => {
                let own = Host::Address(IpAddr::V4(GATEWAY));
                Identity::new(Scheme::Http, own, PROXY_PORT).map(|own| Place::Proxy { own })
            }
        };
        let Some(place) = place else { return };
        self.forward(wall).serve(stream, first.into(), &place, via).await;
    }
}

impl<W> fmt::Debug for Web<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Web").field("opener", &self.opener).finish_non_exhaustive()
    }
}
