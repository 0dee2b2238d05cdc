package object_test

import (
	"encoding/json"
	"fmt"

	"svcctl.io/svcctl/store/object"
)

func Example() {
	o := object.StrategyOfKind("Service").New()
	document := `{"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}, {"name": "b", "port": 65536}]}}`
	if err := json.Unmarshal([]byte(document), o); err != nil {
		fmt.Println(err)
		return
	}
	object.Default(o)
	errs := object.DefaultFamilies(o.(*object.Service), nil, []string{object.IPv4, object.IPv6})
	for _, err := range object.Join(errs, object.Validate(o, object.Options{})) {
		fmt.Println(err)
	}
	// Output:
	// spec.ports[0].name: Required value
	// spec.ports[1].port: Invalid value: 65536: must be between 1 and 65535, inclusive
	// spec.ports[1].targetPort: Invalid value: 65536: must be between 1 and 65535, inclusive
}
