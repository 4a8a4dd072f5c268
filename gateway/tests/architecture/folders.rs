//! Import graphs of the modules of one folder: siblings have no import cycle.

use super::*;

/// Path of a module below the crate's root.
type Location = Vec<String>;

/// Maximum number of `use` declarations that one path may lead through.
const MOST_REEXPORTS: usize = 16;

/// Production code of a module, without that of its child modules.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Paths of two or more segments.
    paths: Vec<Vec<String>>,
    /// Names that `use` declarations bind, each with its path.
    bindings: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
}

/// Module tree of a crate.
struct Modules {
    folder: PathBuf,
    all: BTreeMap<Location, Module>,
}

/// Imports between one folder's modules: the importing and the imported one, each pair with the code that makes it.
type Imports = BTreeMap<(String, String), BTreeSet<String>>;

fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// Splits code into names, `::`, and single characters; comments and literals are left out.
fn tokens(code: &str) -> Vec<String> {
    let letters: Vec<char> = code.chars().collect();
    let letter = |at: usize| letters.get(at).copied().unwrap_or_default();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (mut tokens, mut at) = (Vec::new(), 0);
    // The place behind the end of a literal that has begun.
    let behind_string = |mut at: usize| {
        while at < letters.len() && letter(at) != '"' {
            at += if letter(at) == '\\' { 2 } else { 1 };
        }
        at + 1
    };
    let behind_raw_string = |begin: usize| {
        let hashes = (begin..).take_while(|at| letter(*at) == '#').count();
        let mut at = begin + hashes + 1;
        while at < letters.len() && !(letter(at) == '"' && (1..=hashes).all(|hash| letter(at + hash) == '#')) {
            at += 1;
        }
        at + hashes + 1
    };
    while at < letters.len() {
        match (letter(at), letter(at + 1)) {
            ('/', '/') => at += (at..letters.len()).take_while(|at| letter(*at) != '\n').count(),
            ('/', '*') => {
                at += 2
                    + (at + 2..letters.len())
                        .take_while(|at| (letter(*at), letter(at + 1)) != ('*', '/'))
                        .count()
                    + 2
            }
            ('"', _) => at = behind_string(at + 1),
            ('\'', '\\') => at += 3 + (at + 3..letters.len()).take_while(|at| letter(*at) != '\'').count() + 1,
            ('\'', _) => at += if letter(at + 2) == '\'' { 3 } else { 1 },
            (':', ':') => {
                tokens.push("::".to_owned());
                at += 2;
            }
            (first, _) if is_word(first) => {
                let word: String = (at..letters.len()).map(letter).take_while(|letter| is_word(*letter)).collect();
                at += word.chars().count();
                match (word.as_str(), letter(at), letter(at + 1)) {
                    ("r" | "br", '"', _) | ("r" | "br", '#', '"' | '#') => at = behind_raw_string(at),
                    ("b" | "c", '"', _) => at = behind_string(at + 1),
                    _ => tokens.push(word),
                }
            }
            (space, _) if space.is_whitespace() => at += 1,
            (other, _) => {
                tokens.push(other.to_string());
                at += 1;
            }
        }
    }
    tokens
}

/// Returns the position behind the bracket that closes the one here.
fn behind_brackets(tokens: &[String], begin: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(begin) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the position behind an item, including its attributes.
fn behind_item(tokens: &[String], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        at = match token.as_str() {
            ";" => return at + 1,
            "{" => return behind_brackets(tokens, at),
            "(" | "[" => behind_brackets(tokens, at),
            _ => at + 1,
        };
    }
    at
}

fn is_test(tokens: &[String]) -> bool {
    let test = ["#", "[", "cfg", "(", "test", ")", "]"];
    tokens.len() >= test.len() && tokens.iter().zip(test).all(|(token, of_test)| token == of_test)
}

impl Module {
    /// Reads what follows `use`, or a part of it in braces, and returns the place behind it.
    fn read_use(&mut self, tokens: &[String], mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        while let Some(token) = tokens.get(at) {
            match token.as_str() {
                "{" => {
                    at += 1;
                    while tokens.get(at).is_some_and(|token| token != "}") {
                        at = self.read_use(tokens, at, &path);
                        at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                    }
                    return at + 1;
                }
                "*" => {
                    self.globs.push(path.clone());
                    self.paths.push(path);
                    return at + 1;
                }
                "::" => {}
                "self" if !path.is_empty() => {}
                "as" => {
                    let name = tokens.get(at + 1).cloned().unwrap_or_default();
                    self.paths.push(path.clone());
                    self.bindings.insert(name, path);
                    return at + 2;
                }
                name if is_name(name) => path.push(token.clone()),
                _ => break,
            }
            at += 1;
        }
        if let Some(name) = path.last() {
            self.bindings.insert(name.clone(), path.clone());
            self.paths.push(path);
        }
        at
    }
}

impl Modules {
    /// Reads the crate with this root file, a `lib.rs` or a `main.rs`.
    fn from_root(root: &Path) -> Self {
        let folder = root.parent().unwrap();
        let mut modules = Self {
            folder: folder.to_owned(),
            all: BTreeMap::new(),
        };
        modules.read_file(Location::new(), root.to_owned(), folder);
        modules
    }

    fn read_file(&mut self, location: Location, file: PathBuf, children: &Path) {
        let tokens = tokens(&text(&file));
        self.read(location, &file, children, &tokens);
    }

    /// Reads a module's code, whose child modules have their files in the folder `children`.
    fn read(&mut self, location: Location, file: &Path, children: &Path, tokens: &[String]) {
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        let token = |at: usize| tokens.get(at).map_or("", String::as_str);
        let mut at = 0;
        while at < tokens.len() {
            at = match token(at) {
                "#" if is_test(&tokens[at..]) => behind_item(tokens, at + 7),
                // `pub(in path)` names no import.
                "pub" if token(at + 1) == "(" => behind_brackets(tokens, at + 1),
                "mod" if is_name(token(at + 1)) && matches!(token(at + 2), ";" | "{") => {
                    let name = token(at + 1);
                    let child = [location.as_slice(), &[name.to_owned()]].concat();
                    let (folder, single) = (children.join(name), children.join(format!("{name}.rs")));
                    if token(at + 2) == "{" {
                        let end = behind_brackets(tokens, at + 2);
                        self.read(child, file, &folder, &tokens[at + 3..end - 1]);
                        end
                    } else {
                        let file = if single.is_file() { single } else { folder.join("mod.rs") };
                        self.read_file(child, file, &folder);
                        at + 3
                    }
                }
                "use" => module.read_use(tokens, at + 1, &[]),
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" if is_name(token(at + 1)) => {
                    module.items.insert(token(at + 1).to_owned());
                    at + 2
                }
                name if is_name(name) && token(at + 1) == "::" => {
                    let mut path = vec![name.to_owned()];
                    at += 1;
                    while token(at) == "::" && is_name(token(at + 1)) {
                        path.push(token(at + 1).to_owned());
                        at += 2;
                    }
                    module.paths.extend((path.len() > 1).then_some(path));
                    at.max(1)
                }
                _ => at + 1,
            };
        }
        self.all.insert(location, module);
    }

    /// Returns the modules that a path names in the code of a module: the one that it is of, and those whose `use` leads there.
    fn named(&self, location: &[String], path: &[String], reexports: usize) -> Vec<Location> {
        let Some(first) = path.first().filter(|_| reexports > 0) else {
            return Vec::new();
        };
        let (mut here, mut rest) = match first.as_str() {
            "crate" => (Location::new(), &path[1..]),
            "self" => (location.to_vec(), &path[1..]),
            "super" => (location.to_vec(), path),
            name if self.knows(location, name) => (location.to_vec(), path),
            _ => return Vec::new(),
        };
        while let [above, below @ ..] = rest
            && above == "super"
        {
            here.pop();
            rest = below;
        }
        while let [name, below @ ..] = rest {
            let child = [here.as_slice(), std::slice::from_ref(name)].concat();
            if self.all.contains_key(&child) {
                (here, rest) = (child, below);
                continue;
            }
            let further = |path: &[String]| self.named(&here, &[path, below].concat(), reexports - 1);
            let mut behind = match self.all[&here].bindings.get(name) {
                Some(path) => further(path),
                None => self.behind_globs(&here, name, reexports),
            };
            behind.push(here);
            return behind;
        }
        vec![here]
    }

    /// Resolves a name that a module has by `use path::*`.
    fn behind_globs(&self, location: &[String], name: &str, reexports: usize) -> Vec<Location> {
        let module = &self.all[location];
        let globs = module.globs.iter().filter(|_| !module.items.contains(name));
        let of = |path: &Vec<String>| {
            let targets = self.named(location, path, reexports - 1);
            let has = targets.first().is_some_and(|target| target != location && self.knows(target, name));
            if has {
                self.named(&targets[0], &[name.to_owned()], reexports - 1)
            } else {
                Vec::new()
            }
        };
        globs.flat_map(of).collect()
    }

    /// Returns whether a module has an item, a `use` or a child module of this name.
    fn knows(&self, location: &[String], name: &str) -> bool {
        let child = [location, &[name.to_owned()]].concat();
        let module = &self.all[location];
        self.all.contains_key(&child) || module.items.contains(name) || module.bindings.contains_key(name)
    }

    /// Returns the imports between siblings, by their parent.
    fn imports(&self) -> BTreeMap<Location, Imports> {
        let mut all: BTreeMap<Location, Imports> = BTreeMap::new();
        for (location, module) in &self.all {
            for path in &module.paths {
                for target in self.named(location, path, MOST_REEXPORTS) {
                    let common = location.iter().zip(&target).take_while(|(one, other)| one == other).count();
                    let (Some(from), Some(to)) = (location.get(common), target.get(common)) else {
                        continue;
                    };
                    let file = module.file.strip_prefix(&self.folder).unwrap().display();
                    let import = format!("{file}: {}", path.join("::"));
                    let imports = all.entry(location[..common].to_vec()).or_default();
                    imports.entry((from.clone(), to.clone())).or_default().insert(import);
                }
            }
        }
        all
    }
}

/// Returns the names that can be reached from one.
fn reached<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(name) = left.pop() {
        let next = imports.keys().filter(|(one, _)| one == name).map(|(_, other)| other.as_str());
        let new: Vec<&str> = next.filter(|other| !reached.contains(other)).collect();
        reached.extend(&new);
        left.extend(new);
    }
    reached
}

/// Returns the import cycles among siblings of a crate, each with its modules and imports.
fn cycles(modules: &Modules) -> Vec<String> {
    let mut cycles = Vec::new();
    for (parent, imports) in modules.imports() {
        let names: BTreeSet<&str> = imports.keys().map(|(from, _)| from.as_str()).collect();
        let reach: BTreeMap<&str, BTreeSet<&str>> = names.iter().map(|name| (*name, reached(&imports, name))).collect();
        let mut told = BTreeSet::new();
        for name in &names {
            let others = reach[name]
                .iter()
                .filter(|other| reach.get(*other).is_some_and(|back| back.contains(name)));
            let cycle: BTreeSet<&str> = others.copied().collect();
            if cycle.is_empty() || !told.insert(cycle.clone()) {
                continue;
            }
            let within = imports
                .iter()
                .filter(|((from, to), _)| cycle.contains(from.as_str()) && cycle.contains(to.as_str()));
            let list: Vec<String> = within.map(|((from, to), by)| format!("  {from} -> {to}: {by:?}")).collect();
            cycles.push(format!(
                "import cycle of {cycle:?} in {:?}:\n{}",
                parent.join("::"),
                list.join("\n")
            ));
        }
    }
    cycles
}

#[test]
fn the_modules_of_a_folder_have_no_import_cycle() {
    let mut found = Vec::new();
    for file in [
        "attest/node/src/lib.rs",
        "attest/src/lib.rs",
        "attest/wire/src/lib.rs",
        "gateway/attestation-log/src/lib.rs",
        "gateway/auditor/src/lib.rs",
        "gateway/auditor/src/main.rs",
        "gateway/certificates/src/lib.rs",
        "gateway/cluster-api/src/lib.rs",
        "gateway/controller/src/lib.rs",
        "gateway/ignition/src/lib.rs",
        "gateway/machines/src/lib.rs",
        "gateway/command-line/src/lib.rs",
        "gateway/src/lib.rs",
        "gateway/src/main.rs",
        "gateway/plain-http/src/lib.rs",
        "gateway/pointers/src/lib.rs",
        "gateway/pool/src/lib.rs",
        "gateway/recording/src/lib.rs",
        "gateway/store/src/lib.rs",
        "gateway/system/src/lib.rs",
    ] {
        let cycles = cycles(&Modules::from_root(&root().join(file)));
        found.extend(cycles.into_iter().map(|cycle| format!("{file}: {cycle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn finds_imports_of_the_program() {
    let imports = Modules::from_root(&root().join("gateway/src/main.rs")).imports();
    for (from, to) in [("ca", "certificate"), ("log", "acting")] {
        let commands = &imports[&vec!["commands".to_owned()]];
        assert!(commands.contains_key(&(from.to_owned(), to.to_owned())), "{commands:?}");
    }
}

#[test]
fn finds_imports_of_the_store() {
    let imports = Modules::from_root(&root().join("gateway/store/src/lib.rs")).imports();
    for (parent, from, to) in [
        (&[][..], "transactions", "uses"),
        (&["etcd"], "committer", "own"),
        (&["kubernetes"], "committer", "view"),
    ] {
        let parent: Location = parent.iter().map(|name| String::from(*name)).collect();
        assert!(imports[&parent].contains_key(&(from.to_owned(), to.to_owned())), "{imports:?}");
    }
}

/// Writes a crate's files, and returns its import cycles.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, code) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, code).unwrap();
    }
    cycles(&Modules::from_root(&folder.path().join("lib.rs")))
}

#[test]
fn finds_a_cycle_of_two_modules_of_a_folder() {
    let files = |b: &'static str| {
        [
            ("lib.rs", "mod below;"),
            ("below/mod.rs", "mod a;\nmod b;"),
            ("below/a.rs", "use super::b::{self, B};\npub(super) struct A;"),
            ("below/b.rs", b),
        ]
    };
    let found = cycles_of(&files("pub(super) struct B(crate::below::a::A);"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(r#"import cycle of {"a", "b"}"#), "{found:?}");
    assert!(
        found[0].contains("a -> b") && found[0].contains("below/a.rs: super::b::B"),
        "{found:?}"
    );
    assert!(
        found[0].contains("b -> a") && found[0].contains("below/b.rs: crate::below::a::A"),
        "{found:?}"
    );
    for no_import in [
        "// super::a::A\nconst A: &str = r#\"super::a::A\"#;\npub(in super::a) struct B<'a>(&'a str, [char; 2]);",
        "pub(super) struct B;\n#[cfg(test)]\n#[allow(unused)]\nmod tests {\n    use super::super::a::A;\n}",
        "pub(super) struct B;\n#[cfg(test)]\nmod tests;",
    ] {
        assert_eq!(cycles_of(&files(no_import)), Vec::<String>::new(), "{no_import}");
    }
}

#[test]
fn finds_a_cycle_through_a_parents_reexport() {
    for (root, import) in [
        ("mod a;\nmod b;\npub use a::{A as C, D};", "use crate::C;"),
        ("mod a;\nmod b;\nuse self::a::A as C;", "use super::{C};"),
        ("mod a;\nmod b;\npub use a::*;", "use crate::A;"),
        ("mod a;\nmod b;", "use crate as parent;\nfn b() -> parent::a::A {}"),
    ] {
        let files = [("lib.rs", root), ("a.rs", "pub struct A(super::b::B);"), ("b.rs", import)];
        let found = cycles_of(&files);
        assert_eq!(found.len(), 1, "{root}\n{import}: {found:?}");
    }
    let own = [
        ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub struct C;"),
        ("a.rs", "use super::b::B;\npub struct A;"),
        ("b.rs", "use crate::C;\npub struct B;"),
    ];
    assert_eq!(cycles_of(&own), Vec::<String>::new());
}

#[test]
fn finds_a_cycle_through_nested_modules() {
    let files = [
        ("lib.rs", "mod a { pub mod deep; }\nmod b;\nmod c;"),
        ("a/deep.rs", "use super::super::b::B;\npub struct A;"),
        ("b.rs", "pub struct B(crate::c::C);"),
        ("c/mod.rs", "pub mod deep;\npub use deep::C;"),
        ("c/deep.rs", "pub struct C;\nfn c(_: crate::a::deep::A) {}"),
    ];
    let found = cycles_of(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(r#"import cycle of {"a", "b", "c"}"#), "{found:?}");
}
