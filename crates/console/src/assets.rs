//! The pages: HTML, style and modules as they are written, inside the binary.

/// Lets browsers use scripts and styles of this server on these pages, and talk to it, and nothing else. Scripts that
/// make markup of any text are refused.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// A file of the pages.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its kind, for the header `Content-Type`.
    pub content_type: &'static str,
    /// Its text.
    pub body: &'static str,
}

macro_rules! assets {
    ($($path:literal $file:literal $kind:ident,)*) => {
        /// Every path and its file.
        const ASSETS: &[(&str, Asset)] = &[$((
            $path,
            Asset { content_type: $kind, body: include_str!(concat!("../assets/", $file)) },
        ),)*];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "/" "index.html" HTML,
    "/console/style.css" "style.css" CSS,
    "/console/icon.svg" "icon.svg" SVG,
    "/console/main.js" "main.js" JS,
    "/console/dom.js" "dom.js" JS,
    "/console/text.js" "text.js" JS,
    "/console/stream.js" "stream.js" JS,
    "/console/locks.js" "locks.js" JS,
    "/console/lock.js" "lock.js" JS,
    "/console/timeline.js" "timeline.js" JS,
    "/console/evict.js" "evict.js" JS,
    "/console/hot.js" "hot.js" JS,
    "/console/alarms.js" "alarms.js" JS,
    "/console/store.js" "store.js" JS,
}

/// Returns the file for a path, if there is one.
pub fn asset(path: &str) -> Option<Asset> {
    ASSETS.iter().find(|(known, _)| *known == path).map(|(_, asset)| *asset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_load_nothing_from_elsewhere_and_make_no_markup_of_text() {
        for (path, asset) in ASSETS {
            for bad in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
                "srcdoc",
                "javascript:",
            ] {
                assert!(!asset.body.contains(bad), "{path} has {bad}");
            }
            let elsewhere = asset.body.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{path}");
        }
    }

    #[test]
    fn markup_has_no_script_or_style_of_its_own() {
        let page = asset("/").expect("the page").body;
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"), "{page}");
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=").count());
    }

    #[test]
    fn every_module_that_is_named_is_there() {
        for (path, asset) in ASSETS {
            for part in asset.body.split("from \"./").skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                assert!(self::asset(&format!("/console/{name}")).is_some(), "{path} names {name}");
            }
        }
        assert!(asset("/console/../Cargo.toml").is_none());
    }

    #[test]
    fn the_pages_are_small() {
        let size: usize = ASSETS.iter().map(|(_, asset)| asset.body.len()).sum();
        assert!(size < 120_000, "{size}");
    }
}
