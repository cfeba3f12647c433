use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A map that is asked several times per message. The default hasher resists chosen keys at ten times the price; here
/// the keys are this program's own, or those of authenticated peers, who can fill no map beyond their credit.
pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;
