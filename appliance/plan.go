package appliance

import (
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
)

// Plan writes the ruleset that a fresh appliance would program for the manifests of
// these files and directories, in nft syntax, and returns what is wrong with them. It
// needs no privileges, no kernel and no running appliance, so the addresses of the box
// are not known: node ports answer on the single addresses that cfg.NodePortAddresses
// names.
func Plan(cfg Config, paths []string, w io.Writer) ([]manifest.Problem, error) {
	files, err := readManifests(paths)
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
	p.adopt(nil, cfg.offlineBox(), cfg.resolveFacts(nil, nil), objects, services)
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

// readManifests decodes every manifest file under the paths.
func readManifests(paths []string) (map[string]*manifest.File, error) {
	files := map[string]*manifest.File{}
	for _, path := range paths {
		names, err := ManifestFiles(path, false)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read manifests: %w", err)
			}
			files[name] = manifest.Decode(name, data, manifest.DefaultLimits())
		}
	}
	return files, nil
}

// ManifestFiles lists a file, or what Run would read of a directory; when it is flat, of
// none below it. A directory without manifests is an error.
func ManifestFiles(path string, flat bool) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var names []string
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != path && (flat || d.Name()[0] == '.'):
			return filepath.SkipDir
		case !d.IsDir() && d.Name()[0] != '.' && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			names = append(names, name)
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no *.yaml, *.yml or *.json file", path)
	}
	return names, err
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
