//! From the connections that the gate takes to those who read what is inside.

use crate::hello::ClientHello;
use crate::http::{Addressing, Forward, Secrets};
use crate::inbound::{Inbound, Protocols};
use crate::tape::Mode;
use crate::tls::{Ca, Opener, Servers};
use crate::wall::Wall;
use fumehood_model::egress::{Identity, Scheme};
use fumehood_vault::vault::Vault;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Reads HTTP, in the clear and inside of TLS.
#[derive(Debug)]
pub(crate) struct Readers<W> {
    servers: Rc<Servers>,
    opener: Option<Opener>,
    secrets: Rc<Secrets>,
    tape: RefCell<Mode>,
    /// Made with the first connection, and kept: connections to servers are shared.
    forward: OnceCell<Forward<W>>,
}

// === impl Readers ===

impl<W: Wall> Readers<W> {
    /// Without an authority no TLS is opened.
    pub(crate) fn new(servers: Servers, ca: Option<Ca>, vault: Vault, tape: Mode) -> Self {
        let opener = ca.map(|ca| Opener::new(Rc::new(ca)));
        let secrets = Rc::new(Secrets::new(vault));
        let tape = RefCell::new(tape);
        Self { servers: Rc::new(servers), opener, secrets, tape, forward: OnceCell::new() }
    }

    /// The secrets, for who has newer values of them.
    pub(crate) fn secrets(&self) -> Rc<Secrets> {
        Rc::clone(&self.secrets)
    }

    fn forward(&self, wall: W) -> &Forward<W> {
        self.forward.get_or_init(|| {
            let tape = self.tape.take();
            Forward::taped(wall, Rc::clone(&self.servers), Rc::clone(&self.secrets), tape)
        })
    }
}

impl<W: Wall> Protocols<W> for Readers<W> {
    async fn tls(&self, wall: W, inbound: Inbound, _hello: ClientHello) {
        let Some(identity) = inbound.place.as_ref().and_then(|place| place.speaking(Scheme::Https)) else {
            return;
        };
        // A rule that opens TLS makes an authority; without one, nothing is opened and nothing passes.
        let Some(opener) = &self.opener else { return };
        let Inbound { stream, first, via, .. } = inbound;
        self.forward(wall).serve_tls(opener, (stream, first.into()), identity, via).await;
    }

    async fn http(&self, wall: W, inbound: Inbound) {
        let Inbound { stream, first, via, place } = inbound;
        let addressing = match place {
            Some(place) => place.speaking(Scheme::Http).map(Addressing::Fixed),
            None => own().map(|own| Addressing::Proxy { own }),
        };
        let Some(addressing) = addressing else { return };
        self.forward(wall).serve(stream, first.into(), &addressing, via).await;
    }
}

/// The proxy itself, where a request names nobody.
fn own() -> Option<Identity> {
    let port = 3128;
    Identity::new(Scheme::Http, fumehood_model::egress::Host::address(crate::names::GATEWAY.into()), port)
}
