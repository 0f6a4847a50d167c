!> Dumps by MPI-IO: `full` writes a dump in one collective call, with types that say where
!> everything lies; `simple` writes each row of a cell by a call of its own. The file is the same.
module dumps_mpi
  use mpi_f08
  use equations, only: dp, unknowns, ghosts
  use decomposition, only: partition_type
  use failure, only: check, fail
  implicit none
  private

  integer, parameter, public :: hint_length = 256

  type, public :: hint_type
    character(hint_length) :: key = ' ', value = ' '
  end type hint_type

  type, public :: mpi_dumps_type
    private
    type(MPI_File) :: file
    type(MPI_Datatype) :: in_memory
    logical :: collective = .true.
  contains
    procedure :: open => open_file
    procedure :: write => write_dump
    procedure :: read => read_dump
    procedure :: sync => sync_file
    procedure :: close => close_file
  end type mpi_dumps_type

contains

  subroutine open_file(this, part, path, writing, collective, asked)
    class(mpi_dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    character(*), intent(in) :: path
    logical, intent(in) :: writing, collective
    type(hint_type), intent(in) :: asked(:)
    type(MPI_Info) :: info
    integer :: code, i, mode

    this%collective = collective
    call MPI_Info_create(info)
    do i = 1, size(asked)
      call MPI_Info_set(info, trim(asked(i)%key), trim(asked(i)%value))
    end do
    mode = merge(MPI_MODE_WRONLY, MPI_MODE_RDONLY, writing)
    call MPI_File_open(part%comm, path, mode, info, this%file, code)
    call check(code, 'MPI_File_open of ' // path)
    call MPI_Info_free(info)
    if (collective) call set_view(this, part)
  end subroutine open_file

  !> A rank sees only its own points of the file, dump after dump, and takes them from its cells.
  subroutine set_view(this, part)
    class(mpi_dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    type(MPI_Datatype) :: point, in_file, files(part%p), memories(part%p)
    integer(MPI_ADDRESS_KIND) :: nowhere(part%p)
    integer :: c, code, whole(5), ones(part%p)

    call MPI_Type_contiguous(unknowns, MPI_DOUBLE_PRECISION, point)
    call MPI_Type_commit(point)
    whole = [unknowns, spread(part%edge_max + 2 * ghosts, 1, 3), part%p]
    do c = 1, part%p
      associate (cell => part%cells(c))
        call MPI_Type_create_subarray(3, spread(part%n, 1, 3), cell%edge, cell%start, &
            MPI_ORDER_FORTRAN, point, files(c))
        call MPI_Type_create_subarray(5, whole, [unknowns, cell%edge, 1], &
            [0, spread(ghosts, 1, 3), c - 1], MPI_ORDER_FORTRAN, MPI_DOUBLE_PRECISION, memories(c))
      end associate
    end do
    nowhere = 0
    ones = 1
    call MPI_Type_create_struct(part%p, ones, nowhere, files, in_file)
    call MPI_Type_create_struct(part%p, ones, nowhere, memories, this%in_memory)
    call MPI_Type_commit(in_file)
    call MPI_Type_commit(this%in_memory)
    call MPI_File_set_view(this%file, 0_MPI_OFFSET_KIND, point, in_file, 'native', MPI_INFO_NULL, &
        code)
    call check(code, 'MPI_File_set_view')
  end subroutine set_view

  subroutine write_dump(this, part, number, u)
    class(mpi_dumps_type), intent(in) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    type(MPI_Status) :: status
    integer :: c, y, z, edge, code

    if (this%collective) then
      call MPI_File_write_at_all(this%file, own_points(part, number), u, 1, this%in_memory, &
          status, code)
      call check(code, 'MPI_File_write_at_all')
      call check_count(status, unknowns * part%points(), 'MPI_File_write_at_all')
      return
    end if
    do c = 1, part%p
      edge = part%cells(c)%edge(1)
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          call MPI_File_write_at(this%file, row_offset(part, number, c, y, z), &
              u(:, 0:edge - 1, y, z, c), unknowns * edge, MPI_DOUBLE_PRECISION, status, code)
          call check(code, 'MPI_File_write_at')
          call check_count(status, unknowns * edge, 'MPI_File_write_at')
        end do
      end do
    end do
  end subroutine write_dump

  subroutine read_dump(this, part, number, u)
    class(mpi_dumps_type), intent(in) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    type(MPI_Status) :: status
    integer :: c, y, z, edge, code

    if (this%collective) then
      call MPI_File_read_at_all(this%file, own_points(part, number), u, 1, this%in_memory, status, &
          code)
      call check(code, 'MPI_File_read_at_all')
      call check_count(status, unknowns * part%points(), 'MPI_File_read_at_all')
      return
    end if
    do c = 1, part%p
      edge = part%cells(c)%edge(1)
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          call MPI_File_read_at(this%file, row_offset(part, number, c, y, z), &
              u(:, 0:edge - 1, y, z, c), unknowns * edge, MPI_DOUBLE_PRECISION, status, code)
          call check(code, 'MPI_File_read_at')
          call check_count(status, unknowns * edge, 'MPI_File_read_at')
        end do
      end do
    end do
  end subroutine read_dump

  !> Where a dump begins in what this rank sees of the file, in points.
  pure integer(MPI_OFFSET_KIND) function own_points(part, number)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number

    own_points = int(part%points(), MPI_OFFSET_KIND) * number
  end function own_points

  !> Where a row of a cell begins in the file, in bytes.
  pure integer(MPI_OFFSET_KIND) function row_offset(part, number, c, y, z)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number, c, y, z
    integer, parameter :: point_bytes = unknowns * storage_size(1.0_dp) / 8

    row_offset = point_bytes * part%index_of(number, c, 0, y, z)
  end function row_offset

  !> A disk that is full or a file that is too short is no error to MPI-IO, only less than asked
  !> for.
  subroutine check_count(status, wanted, what)
    type(MPI_Status), intent(in) :: status
    integer, intent(in) :: wanted
    character(*), intent(in) :: what
    character(120) :: text
    integer :: found

    call MPI_Get_elements(status, MPI_DOUBLE_PRECISION, found)
    if (found == wanted) return
    write (text, '(2a, i0, a, i0, a)') what, ': only ', found, ' of ', wanted, ' numbers'
    call fail(trim(text))
  end subroutine check_count

  subroutine sync_file(this)
    class(mpi_dumps_type), intent(in) :: this
    integer :: code

    call MPI_File_sync(this%file, code)
    call check(code, 'MPI_File_sync')
  end subroutine sync_file

  subroutine close_file(this)
    class(mpi_dumps_type), intent(inout) :: this
    integer :: code

    call MPI_File_close(this%file, code)
    call check(code, 'MPI_File_close')
  end subroutine close_file

end module dumps_mpi
