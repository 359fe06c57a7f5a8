-- gradfix: autograd faults while you type; nothing is run before you ask for a proof
local function start()
  local config = { name = 'gradfix', cmd = { 'gradfix', 'server', '--stdio' }, root_dir = vim.fn.getcwd() }
  if vim.lsp.start then
    vim.lsp.start(config)
  else -- before Neovim 0.8
    vim.g.gradfix_client = vim.g.gradfix_client or vim.lsp.start_client(config)
    vim.lsp.buf_attach_client(0, vim.g.gradfix_client)
  end
end
vim.api.nvim_create_autocmd('FileType', { pattern = 'python', callback = start })
