//! The way in for wakes of a store. They are hints that may be lost, late or doubled: nothing depends on them but time.

use std::sync::Arc;

use super::{
    Engine,
    registry::Recipient,
    release::{self, Unwanted},
    settle::{self, News},
};
use crate::{
    clock::BootTime,
    deadline,
    name::Name,
    store::{GrantNotice, Topic, Wake},
};

pub(super) fn deliver(engine: &Arc<Engine>, wake: Wake) {
    match wake {
        Wake::Granted(name, notice) => pushed(engine, &name, notice),
        Wake::Changed(Topic::Grants(name)) => settle::hint(&engine.registry.waiting_for(Some(&name))),
        Wake::Changed(topic) => engine.subscriptions.changed(&topic),
        Wake::Resync => {
            settle::hint(&engine.registry.waiting_for(None));
            engine.subscriptions.all_changed();
        }
        Wake::Reconfirm => engine.registry.renew_now(engine.clock().now()),
    }
}

/// A grant made by a releaser.
fn pushed(engine: &Arc<Engine>, name: &Name, notice: GrantNotice) {
    if notice.contender.keeper != engine.ids.keeper() {
        return;
    }
    match engine.registry.recipient(notice.contender.seq, notice.number) {
        Recipient::Waiting(waiter) => settle::settle(&waiter, News::Pushed(notice)),
        _ => {
            let GrantNotice { contender, number, lease, .. } = notice;
            // The store's clock may have run faster than ours while the contender waited.
            let granted = BootTime(notice.stamp).after(notice.waited).before(deadline::margin(notice.waited));
            release::unwanted(engine, &Unwanted { name, contender, number, lease, granted });
        }
    }
}
