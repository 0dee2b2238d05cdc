package wire

// Environment are the variables that tell a program where the Services of a namespace
// are, the answer of /svcctl/v1/env.
type Environment struct {
	Namespace string     `json:"namespace"`
	Variables []Variable `json:"variables"` // by Service; no name comes twice
}

// Variable is a variable of the environment.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
