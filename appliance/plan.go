package appliance

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// Plan writes the ruleset that a fresh appliance would program for the manifests of
// these files and directories, in nft syntax, and returns what is wrong with them. It
// needs no privileges, no kernel and no running appliance, so the addresses of the box
// are not known: node ports answer on the single addresses that cfg.NodePortAddresses
// names.
func Plan(cfg config.Config, paths []string, w io.Writer) ([]manifest.Problem, error) {
	files, err := readManifests(paths)
	if err != nil {
		return nil, err
	}
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		return nil, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return nil, err
	}
	made := control.NewEndpoints(cfg.EndpointsFacts(), objects)
	if err := made.Sync(); err != nil {
		return nil, err
	}
	var services []string
	for key := range objects.Services() {
		services = append(services, key)
	}
	ruleset, found := reconcile.Plan(reconcile.Host{Box: cfg.OfflineBox(), Resolve: cfg.ResolveFacts(nil, nil)}, objects, services)
	if err := ruleset.WriteText(w); err != nil {
		return nil, fmt.Errorf("write the plan: %w", err)
	}
	reporter := reconcile.Reporter{Where: objects.Location}
	problems := objects.Problems()
	for _, q := range append(made.Problems(), found...) {
		problems = append(problems, reporter.InFile(q))
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
