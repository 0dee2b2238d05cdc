package wire

// Environment are the environment variables for the Services of a namespace: the answer
// to /svcctl/v1/env.
type Environment struct {
	Namespace string     `json:"namespace"`
	Variables []Variable `json:"variables"` // by Service; no name comes twice
}

// Variable is an environment variable.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
