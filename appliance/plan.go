package appliance

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// Plan writes the ruleset that a fresh appliance would program for the manifests of
// these files and directories, or of stdin for "-", in nft syntax, and returns what is wrong with them. It
// needs no privileges, no kernel and no running appliance, so the addresses of the box
// are not known: node ports answer on the single addresses that cfg.NodePortAddresses
// names.
func Plan(cfg Config, paths []string, stdin io.Reader, w io.Writer) ([]manifest.Problem, error) {
	files, err := readManifests(paths, stdin)
	if err != nil {
		return nil, err
	}
	objects, err := store.Open(store.NewMemory(), cfg.storeConfig())
	if err != nil {
		return nil, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return nil, err
	}
	made := cfg.controllers(objects)
	if err := made.sync(); err != nil {
		return nil, err
	}
	p := newPlanner()
	var services []string
	for key := range objects.Services() {
		services = append(services, key)
	}
	p.adopt(nil, cfg.offlineBox(), cfg.resolveFacts(nil), objects, services)
	if err := p.compiler.Ruleset().WriteText(w); err != nil {
		return nil, fmt.Errorf("write the plan: %w", err)
	}
	reporter := reporter{where: objects.Location}
	problems := objects.Problems()
	for _, q := range append(made.problems(), p.allProblems()...) {
		problems = append(problems, reporter.inFile(q))
	}
	return problems, nil
}

// readManifests decodes every manifest at the paths, as serve would read them.
func readManifests(paths []string, stdin io.Reader) (map[string]*manifest.File, error) {
	files := map[string]*manifest.File{}
	once := watch.Once{Stdin: stdin}
	err := once.Each(paths, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			files[name] = &manifest.File{Path: name, Err: refused}
		} else {
			files[name] = manifest.Decode(name, data, manifest.DefaultLimits())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return files, nil
}

// Manifests reads manifests once, as serve would read them.
type Manifests = watch.Once

// ReadFile reads a file that an operator named, of at most so many bytes; it refuses what is
// no regular file, and never blocks on it.
func ReadFile(path string, most int) ([]byte, error) {
	data, err := watch.ReadFile(path, most)
	if refused, is := errors.AsType[*watch.RefusedError](err); is {
		return nil, fmt.Errorf("%s: %w", path, refused)
	}
	return data, err
}

// offlineBox is the box as far as the configuration alone tells.
func (c *Config) offlineBox() nft.Box {
	box := c.box(nil)
	for _, p := range c.NodePortAddresses.Prefixes {
		if p.IsSingleIP() {
			box.NodePortAddresses = append(box.NodePortAddresses, p.Addr())
		}
	}
	slices.SortFunc(box.NodePortAddresses, netip.Addr.Compare)
	return box
}
