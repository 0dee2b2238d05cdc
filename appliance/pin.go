package appliance

import (
	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Pin gives the Services of files their addresses and ports as a fresh appliance would. It needs no privileges
// and no running appliance. It returns the Services by "namespace/name", and what is wrong with the files.
func Pin(cfg config.Config, files map[string]*manifest.File) (map[string]*object.Service, []manifest.Problem, error) {
	cfg.Addresses.Allocate = config.AllocateAuto
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		return nil, nil, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return nil, nil, err
	}
	cfg.ObjectPools = &config.ObjectPools{}
	pools := control.NewPools(objects, advertiseBox(&cfg), func(plan *advertise.Plan) { cfg.ObjectPools.Set(plan.Pools) })
	if _, err := pools.Sync(); err != nil {
		return nil, nil, err
	}
	services := map[string]*object.Service{}
	for key, svc := range objects.Services() {
		services[key] = svc
	}
	return services, objects.Problems(), nil
}
