//! A store's abilities and a lock's promises to its users, as sentences.

use lockkeeper::{
    store::{Capability, Kind, Survives},
    support::duration,
};

use serde::Serialize;

/// One fact about a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StoreWord {
    /// The subject of the fact.
    pub what: &'static str,
    /// The short answer.
    pub answer: String,
    /// Whether that is `good`, `fair`, `poor` or `plain`.
    pub rank: &'static str,
    /// Its meaning for locks.
    pub means: String,
}

/// Returns the facts about a store: its abilities, and the troubles that it survives.
pub(crate) fn words(can: &Capability) -> Vec<StoreWord> {
    let word = |what, answer: &str, rank, means: &str| StoreWord {
        what,
        answer: answer.to_owned(),
        rank,
        means: means.to_owned(),
    };
    let lease = format!("{} to {}", duration::show(can.min_lease), duration::show(can.max_lease));
    let crash = if can.frees_crashed_at_once {
        "The locks of a process that dies are free at once."
    } else {
        "The locks of a process that dies are free when their leases end."
    };
    vec![
        if can.between_processes {
            word(
                "Between processes",
                "yes",
                "good",
                "Every process that connects to this store shares its locks.",
            )
        } else {
            word("Between processes", "no", "plain", "Only this process sees these locks.")
        },
        if can.pushes {
            word("Waiting", "push", "good", "The next in the queue hears of a release at once.")
        } else {
            word("Waiting", "poll", "fair", "Waiters ask again and again, so the next one is a little late.")
        },
        survives("A client crashes", can.client_crash, crash),
        survives("The store restarts", can.restart, "Locks and their queues are still there afterwards."),
        survives("The store loses its data", can.data_loss, "Locks are still exclusive afterwards."),
        survives("The store's clock jumps", can.clock_jump, "No lease ends early or late by it."),
        word(
            "Leases",
            &lease,
            "plain",
            "How long a lock may stay held without a renewal: the shortest and the longest there is.",
        ),
        if can.counts_permits {
            word("Semaphores and latches", "yes", "plain", "It counts permits and has latches.")
        } else {
            word(
                "Semaphores and latches",
                "no",
                "plain",
                "It has mutexes, read-write locks and elections only.",
            )
        },
    ]
}

fn survives(what: &'static str, survives: Survives, fully: &str) -> StoreWord {
    let (rank, means) = match survives {
        Survives::Fully => ("good", fully),
        Survives::WithFence => (
            "fair",
            "A lock may be lost while its holder still believes in it. Tokens still grow, so a resource that checks them \
             stays right.",
        ),
        Survives::No => ("poor", "Locks are lost, and tokens may fall: the fence does not help either."),
        _ => ("plain", "This cannot happen here."),
    };
    StoreWord { what, answer: survives.word().to_owned(), rank, means: means.to_owned() }
}

/// Returns a lock's promises to its users.
pub(crate) fn meaning(kind: Kind, can: &Capability) -> Vec<String> {
    let holds = match kind {
        Kind::RwLock => {
            "Readers hold it together; a writer holds it alone. New readers wait behind a waiting writer."
        }
        Kind::Semaphore => {
            "At most as many permits are held as there are. The others wait in order of arrival."
        }
        Kind::Election => "One leader at a time. The candidates wait until it steps down or is gone.",
        _ => "One holder at a time. The others wait in order of arrival.",
    };
    let token = "The token grows with every holder. A resource that keeps the largest token it has seen, and rejects \
                 smaller ones, is safe from holders that do not know yet that they lost the lock.";
    let crash = if can.frees_crashed_at_once {
        "If its holder dies, it is free at once; if its holder is cut off, when its lease ends."
    } else {
        "If its holder dies or is cut off, it is free when its lease ends, and not before."
    };
    let mut meaning = vec![holds.to_owned(), token.to_owned(), crash.to_owned()];
    if can.restart == Survives::WithFence || can.data_loss == Survives::WithFence {
        let store = can.store;
        meaning.push(format!(
            "A restart of {store} may lose it while its holder works on. Only a resource that checks tokens stays right then."
        ));
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_is_told_in_words() {
        let mut can = Capability::new("an example");
        let poor = words(&can);
        assert!(poor.iter().any(|word| word.rank == "poor"));
        can.restart = Survives::WithFence;
        assert!(words(&can).iter().any(|word| word.answer == "with the fence" && word.rank == "fair"));
        assert!(meaning(Kind::Mutex, &can).iter().any(|text| text.contains("restart of an example")));
        can.restart = Survives::Fully;
        assert_eq!(meaning(Kind::Mutex, &can).len(), 3);
    }
}
